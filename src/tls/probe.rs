//! Whether the kernel can encrypt what is sent, said in words for the log and for `status`. Knows
//! what a trial found, not how it is made.

use super::kernel;
use super::records::Cipher;
use crate::sys::Errno;
use crate::sys::tls_probe::Refusal;

/// What the kernel's TLS is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelSupport {
    /// Whether large bodies can be left to it.
    pub usable: bool,
    /// What it can, or why it cannot and what helps. For one line.
    pub text: String,
}

/// Tries the ciphers that would be handed over. `try_install` is `sys::tls_probe::try_install`.
pub fn probe(try_install: impl Fn(&[u8]) -> Result<(), Refusal>) -> KernelSupport {
    let trial = |cipher| {
        let info = kernel::specimen(cipher).expect("a cipher that is handed over");
        try_install(&info)
    };
    describe(trial(Cipher::Aes128Gcm), trial(Cipher::Aes256Gcm))
}

fn describe(small: Result<(), Refusal>, large: Result<(), Refusal>) -> KernelSupport {
    const AT_BOOT: &str = "at boot: echo tls >/etc/modules-load.d/tls.conf";
    let (usable, text) = match (small, large) {
        (Ok(()), Ok(())) => (true, "AES-128-GCM and AES-256-GCM".to_owned()),
        (Ok(()), Err(_)) => (true, "AES-128-GCM only".to_owned()),
        (Err(_), Ok(())) => (true, "AES-256-GCM only".to_owned()),
        (Err(refusal), Err(_)) => (
            false,
            match refusal {
                Refusal::Layer(Errno::NOENT) => {
                    format!("the kernel's tls module is not loaded; load it with: modprobe tls; {AT_BOOT}")
                }
                Refusal::Layer(errno) => format!("the kernel refuses TLS on a socket: {errno}"),
                Refusal::Keys(Errno::NOENT) => {
                    "the kernel lacks AES-GCM; load it with: modprobe gcm, or modprobe aesni_intel".to_owned()
                }
                Refusal::Keys(errno) => format!("the kernel refuses TLS 1.3 with AES-GCM: {errno}"),
                Refusal::Loopback(errno) => {
                    format!("it cannot be tried without a loopback interface: {errno}")
                }
            },
        ),
    };
    KernelSupport { usable, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_said() {
        let check = |small, large, usable, words: &str| {
            let support = describe(small, large);
            assert_eq!(support.usable, usable, "{support:?}");
            assert!(support.text.contains(words), "{support:?}");
        };
        let (layer, keys) = (Refusal::Layer(Errno::NOENT), Refusal::Keys(Errno::NOENT));
        check(Ok(()), Ok(()), true, "AES-128-GCM and AES-256-GCM");
        check(Ok(()), Err(keys), true, "AES-128-GCM only");
        check(Err(keys), Ok(()), true, "AES-256-GCM only");
        check(Err(layer), Err(layer), false, "modprobe tls");
        check(Err(keys), Err(keys), false, "modprobe gcm");
        check(Err(Refusal::Keys(Errno::INVAL)), Err(keys), false, "refuses TLS 1.3");
        check(Err(Refusal::Loopback(Errno::ACCESS)), Err(keys), false, "loopback");
    }

    #[test]
    fn this_kernel_gives_an_answer() {
        let support = probe(crate::sys::tls_probe::try_install);
        assert!(!support.text.is_empty());
    }
}
