#!/bin/sh
# Runs tests on an emulated machine whose kernel has TLS.
#
#   tests/emulation/run.sh uml             Linux 6.1 as a process, on the file system of this machine
#   tests/emulation/run.sh qemu [SUITE]    the cloud kernel of a Debian release (bookworm: 6.1, trixie: 6.12, the
#                                          default) in QEMU, without KVM, with the tests in its memory
#
# What is missing is fetched as Debian packages into target/emulation, not installed. Needed:
#   apt-get install busybox-static cpio debian-archive-keyring openssl qemu-system-x86
# The tests are those of tests/tls_emulated.rs, and those of tests/e2e/tls.rs: the real server, which is required to
# use the kernel's TLS. Instead of them the commands in the file that EMULATION_TESTS names are run, with the
# programs that EMULATION_PROGRAMS lists (QEMU needs to know them), and any further options of QEMU from
# EMULATION_OPTIONS; EMULATION_CPU is the processor it is to be, EMULATION_SECONDS how long it may take.
set -eu
cd "$(dirname "$0")/../.."
here=$PWD/tests/emulation
work=${CARGO_TARGET_DIR:-$PWD/target}/emulation
machine=${1:?uml or qemu}
suite=${2:-trixie}
mkdir -p "$work"

# download SUITE PACKAGE DIRECTORY: unpacks a Debian package. A name that ends in = stands for what it depends on.
download() {
    apt=$work/apt-$1
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$3"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg arch=amd64] http://deb.debian.org/debian $1 main" \
        >"$apt/sources.list"
    options="-o Dir::Etc::sourcelist=$apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$apt/lists
        -o Dir::Cache::archives=$apt/archives -o APT::Sandbox::User=root -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
    apt-get $options -qq update
    name=$2
    case $name in
    *=) name=$(apt-cache $options depends "${name%=}" | sed -n 's/^ *Depends: //p' | head -n 1) ;;
    esac
    (cd "$apt/archives" && rm -f ./*.deb && apt-get $options -qq download "$name" && dpkg -x ./*.deb "$3" && rm -f ./*.deb)
}

# collect TREE: finds the modules of the kernel's TLS in an unpacked tree, in the order in which they load.
collect() {
    rm -rf "$room/modules" "$room/load"
    mkdir -p "$room/modules"
    : >"$room/load"
    for name in crypto_null gf128mul ghash-generic ctr gcm cryptd crypto_simd aesni-intel tls; do
        file=$(find "$1" -name "$name.ko*" | head -n 1)
        case $file in
        '') continue ;;
        *.xz) xz -dc "$file" >"$room/modules/$name.ko" ;;
        *.zst) zstd -qdc "$file" >"$room/modules/$name.ko" ;;
        *) cp "$file" "$room/modules/$name.ko" ;;
        esac
        echo "$name.ko" >>"$room/load"
    done
    grep -q '^tls.ko$' "$room/load" || { echo "no TLS in this kernel" >&2; exit 1; }
}

# add FILE: puts a program and the libraries it needs into the machine's memory, where they are here.
add() {
    for file in "$1" $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root/$(dirname "$file")"
        # Without what debuggers want: it would be most of the machine's memory.
        [ -e "$root/$file" ] || strip -o "$root/$file" "$file" 2>/dev/null || cp -L "$file" "$root/$file"
    done
}

# program NAME: finds a test program, or the server.
program() {
    path=$(sed -n 's/.*"executable":"\([^"]*\/'"$1"'\(-[0-9a-f]*\)\{0,1\}\)".*/\1/p' "$work/programs" | tail -n 1)
    [ -x "$path" ] || { echo "no program $1: do the tests compile?" >&2; exit 1; }
    echo "$path"
}

room=$work/$machine${EMULATION_TESTS:+-other}
mkdir -p "$room"
if [ -z "${EMULATION_TESTS:-}" ]; then
    cargo test --test tls_emulated --test e2e --no-run --message-format=json 2>/dev/null >"$work/programs" || true
    sessions=$(program tls_emulated) server_tests=$(program e2e) server=$(program httpd)
    EMULATION_PROGRAMS="$sessions $server_tests $server $(command -v openssl)"
    echo "$sessions --test-threads=1" >"$room/tests"
    echo "$server_tests tls:: --test-threads=1" >>"$room/tests"
else
    cp "$EMULATION_TESTS" "$room/tests"
fi

log=$room/log
case $machine in
uml)
    if command -v linux.uml >/dev/null; then
        kernel=$(command -v linux.uml)
        collect /usr/lib/uml/modules
    else
        [ -x "$work/uml-tree/usr/bin/linux.uml" ] || download bookworm user-mode-linux "$work/uml-tree"
        kernel=$work/uml-tree/usr/bin/linux.uml
        collect "$work/uml-tree"
    fi
    "$kernel" mem=512M rootfstype=hostfs rootflags=/ rw init="$here/init.sh" EMULATION_DIR="$room" \
        con=null con0=null,fd:1 quiet </dev/null >"$log" 2>&1 || true
    ;;
qemu)
    tree=$work/$suite-tree
    [ -e "$tree/boot" ] || download "$suite" linux-image-cloud-amd64= "$tree"
    collect "$tree"
    root=$room/root
    rm -rf "$root"
    mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/etc"
    cp "$(command -v busybox)" "$root/bin/busybox"
    ln -s busybox "$root/bin/kill"
    # Those the server may start as, and become.
    printf '%s\n' root:x:0:0::/tmp:/bin/sh www-data:x:33:33::/tmp:/bin/sh >"$root/etc/passwd"
    printf '%s\n' root:x:0: www-data:x:33: >"$root/etc/group"
    for program in $EMULATION_PROGRAMS; do add "$program"; done
    cp -r "$room/modules" "$room/load" "$room/tests" "$root/"
    cp "$here/init.sh" "$root/init"
    (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$room/initramfs"
    # Without cx16: the cmpxchg16b of QEMU 7.2 leaves wrong flags and a wrong stack behind when it is interrupted, and
    # kernels allocate memory with it. What has not said how it ended is started again; a test that fails is not.
    for attempt in 1 2 3; do
        timeout "${EMULATION_SECONDS:-400}" qemu-system-x86_64 -accel tcg -cpu "${EMULATION_CPU:-max,-cx16}" -m 1024 -nographic -no-reboot -nic none \
            -device virtio-rng-pci -kernel "$tree"/boot/vmlinuz-* -initrd "$room/initramfs" \
            -append "console=ttyS0 quiet panic=-1 EMULATION_DIR=/" ${EMULATION_OPTIONS:-} </dev/null >"$log" 2>&1 &
        machine_runs=$!
        while kill -0 $machine_runs 2>/dev/null; do
            sleep 1
            # It does not always end when the machine is off.
            ! grep -q 'reboot: Power down' "$log" || { sleep 1; kill $machine_runs 2>/dev/null || true; }
        done
        wait $machine_runs || true
        grep -q '^emulation: status' "$log" && break
        echo "emulation: attempt $attempt ended without a result" >&2
        tail -n 3 "$log" >&2
    done
    ;;
*)
    echo "uml or qemu" >&2
    exit 2
    ;;
esac
tr -d '\r' <"$log"
tr -d '\r' <"$log" | grep -q '^emulation: status 0$'
