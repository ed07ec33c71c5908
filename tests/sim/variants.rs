//! Compressed forms: the cache directory as a precompressor and accidents leave it, sidecars, and what
//! clients make of a coded answer.

use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

use httpd::files::entry::Coding;
use httpd::files::variants::{Fingerprint, Footer, root_name};
use xxhash_rust::xxh3::xxh3_128;

use crate::faults::Rng;
use crate::site::name_of;
use crate::tree::Tree;
use crate::world::World;

/// The cache directory, and where the tree has it.
pub const CACHE: &str = "/var/cache";
/// As the site's root is configured.
const ROOT: &[u8] = b"/srv/current";
/// Sources that have variants, by chance.
const SOURCES: [&str; 6] =
    ["/a.txt", "/sub/page.html", "/new.txt", "/index.html", "/small.css", "/steady.txt"];
/// There only in coded form: its sidecar is not its own file's.
pub const SHIPPED: &str = "/shipped.js";
/// File times are too coarse to tell changes that follow each other sooner.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Every coded form that was ever published, and what it decodes to.
#[derive(Default)]
pub struct Forms {
    forms: Vec<Form>,
    /// Variants that were damaged where they lie, by their sources, and when.
    pub tampered: Vec<(&'static str, Duration)>,
}

struct Form {
    plain: Rc<Vec<u8>>,
    coding: &'static str,
    coded: Vec<u8>,
}

impl Forms {
    fn add(&mut self, plain: &Rc<Vec<u8>>, coding: Coding, coded: &[u8]) {
        self.forms.push(Form { plain: Rc::clone(plain), coding: coding.name(), coded: coded.to_vec() });
    }

    /// The forms of these contents in a coding.
    pub fn of(&self, plain: &[u8], coding: &str) -> impl Iterator<Item = &[u8]> {
        let same = move |form: &&Form| form.coding == coding && form.plain[..] == *plain;
        self.forms.iter().filter(same).map(|form| &form.coded[..])
    }
}

/// Sidecars and first variants.
pub fn furnish(world: &mut World, rng: &mut Rng) {
    let (tree, forms) = (&mut world.tree, &mut world.forms);
    for path in SOURCES {
        if rng.chance(500) {
            publish(tree, forms, path, rng);
        }
    }
    if rng.chance(500) {
        let (path, coding) = ("/small.css", *rng.pick(&Coding::ALL));
        if let Some(plain) = contents(tree, path) {
            let coded = encode(coding, &plain);
            forms.add(&plain, coding, &coded);
            tree.replace(&format!("{}{}", name_of(path), coding.suffix()), coded);
        }
    }
    ship(tree, forms, rng);
}

/// Puts a new version of what is there in coded form only.
fn ship(tree: &mut Tree, forms: &mut Forms, rng: &mut Rng) {
    let plain = Rc::new(format!("let x = {};\n", rng.next()).repeat(rng.within(1, 400)).into_bytes());
    let coded = encode(Coding::Gzip, &plain);
    forms.add(&plain, Coding::Gzip, &coded);
    tree.replace(&format!("{}.gz", name_of(SHIPPED)), coded);
    tree.note(&name_of(SHIPPED), Some(plain), false);
}

/// Something happens to the cache directory, or to what was shipped.
pub fn happen(world: &mut World) {
    let mut rng = world.rng.fork();
    let (tree, forms, now) = (&mut world.tree, &mut world.forms, world.now);
    let path = *rng.pick(&SOURCES);
    let coding = *rng.pick(&Coding::ALL);
    let what = match rng.below(11) {
        0..=5 => {
            if tree.is_settled(&name_of(path), SETTLED_AFTER) {
                publish(tree, forms, path, &mut rng);
            }
            "the precompressor passes by"
        }
        6 => {
            ship(tree, forms, &mut rng);
            "what is shipped coded is replaced"
        }
        7 => {
            tree.remove("var/cache");
            "the cache vanishes"
        }
        accident => match variant_name(tree, path, coding) {
            None => "nothing",
            Some(name) => match accident {
                8 => {
                    let bytes = (0..rng.below(3000)).map(|_| rng.next() as u8).collect();
                    tree.replace(&name, bytes);
                    "a foreign file lies in a variant's place"
                }
                9 => {
                    if let Some(bytes) = tree.bytes(&name) {
                        tree.replace(&name, bytes[..rng.below(bytes.len().max(1))].to_vec());
                    }
                    "half a variant lies in its place"
                }
                _ => {
                    if let Some(bytes) = tree.bytes(&name) {
                        tree.rewrite(&name, bytes[..bytes.len() / 2].to_vec());
                        forms.tampered.push((path, now));
                    }
                    "a variant is cut where it lies"
                }
            },
        },
    };
    world.note(format_args!("{path} {}: {what}", coding.name()));
}

/// Makes the variants of a file as it is.
fn publish(tree: &mut Tree, forms: &mut Forms, path: &str, rng: &mut Rng) {
    let (Some(plain), Some(print)) = (contents(tree, path), fingerprint(tree, path)) else { return };
    for coding in Coding::ALL {
        let coded = encode(coding, &plain);
        if coded.len() >= plain.len() || rng.chance(200) {
            continue;
        }
        forms.add(&plain, coding, &coded);
        put(tree, &print, coding, &plain, &coded);
    }
}

fn put(tree: &mut Tree, print: &Fingerprint, coding: Coding, plain: &[u8], coded: &[u8]) {
    let (source_hash, coded_hash) = (xxh3_128(plain), xxh3_128(coded));
    let footer = Footer { coded_length: coded.len() as u64, source_hash, coded_hash };
    tree.replace(&cached(print, coding), [coded, &footer.encode(print, coding)].concat());
}

/// Gives a variant of other contents the name of the file's, as after a change that no time tells.
pub fn deceive(tree: &mut Tree, path: &str, coding: Coding) {
    let print = fingerprint(tree, path).expect("a file");
    put(tree, &print, coding, b"others", &encode(coding, b"others"));
}

/// Makes variants of a file, at least one.
pub fn make(tree: &mut Tree, forms: &mut Forms, path: &str) {
    publish(tree, forms, path, &mut Rng::new(0));
}

fn contents(tree: &Tree, path: &str) -> Option<Rc<Vec<u8>>> {
    tree.bytes(&name_of(path))
}

fn fingerprint(tree: &Tree, path: &str) -> Option<Fingerprint> {
    tree.facts_of(&name_of(path)).map(|facts| Fingerprint::of(&facts))
}

fn variant_name(tree: &Tree, path: &str, coding: Coding) -> Option<String> {
    fingerprint(tree, path).map(|print| cached(&print, coding))
}

fn cached(print: &Fingerprint, coding: Coding) -> String {
    format!("{}/{}/{}", CACHE.trim_start_matches('/'), root_name(ROOT), print.path(coding))
}

fn encode(coding: Coding, plain: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Brotli => {
            let mut coded = Vec::new();
            brotli::CompressorWriter::new(&mut coded, 4096, 1, 18).write_all(plain).expect("memory");
            coded
        }
        Coding::Zstd => zstd::bulk::compress(plain, 1).expect("memory"),
        Coding::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(plain).expect("memory");
            encoder.finish().expect("memory")
        }
    }
}

/// Decodes as a client does that knows nothing of the server.
pub fn decode(coding: &str, coded: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let result = match coding {
        "br" => brotli::Decompressor::new(coded, 4096).read_to_end(&mut plain),
        "zstd" => zstd::stream::read::Decoder::new(coded).and_then(|mut it| it.read_to_end(&mut plain)),
        "gzip" => flate2::read::GzDecoder::new(coded).read_to_end(&mut plain),
        other => return Err(format!("Content-Encoding {other}")),
    };
    result.map(|_| plain).map_err(|error| format!("{coding} that cannot be decoded: {error}"))
}
