//! The seeds of the fuzz targets, put through the same checks.

use std::path::Path;

#[path = "../../fuzz/checks.rs"]
#[allow(unreachable_pub, reason = "the fuzz targets are crates of their own")]
mod checks;

fn each_seed(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        check(&seed);
        // Seeds are whole; a fuzzer's first moves are to cut and to overwrite them.
        for at in 0..seed.len() {
            check(&seed[..at]);
            let mut changed = seed.clone();
            changed[at] ^= 0x20;
            check(&changed);
        }
        count += 1;
    }
    assert!(count > 4, "{target} has lost its seeds");
}

#[test]
fn messages() {
    each_seed("message", checks::message);
}

#[test]
fn translated() {
    each_seed("translated", checks::translated);
}

#[test]
fn streams() {
    each_seed("sse", checks::sse);
}

#[test]
fn headers() {
    each_seed("headers", checks::headers);
}

#[test]
fn cursors() {
    each_seed("cursor", checks::cursor);
}

#[test]
fn public_names() {
    each_seed("public", checks::public);
}
