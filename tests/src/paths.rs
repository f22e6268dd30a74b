//! Where the parts are that a test starts.

use std::env;
use std::path::{Path, PathBuf};

/// The gateway's binary: `$WEIR_BINARY`, else `weir` beside the directory of the running test.
///
/// # Panics
/// When it is not there, with what to do.
pub fn weir() -> PathBuf {
    let binary = env::var_os("WEIR_BINARY").map_or_else(|| profile().join("weir"), PathBuf::from);
    assert!(
        binary.is_file(),
        "there is no gateway at {}: build it with `cargo build --bin weir`, or name one in WEIR_BINARY",
        binary.display()
    );
    binary
}

/// Where gateways under test keep what they compile, so that only the first one has to.
pub fn cache() -> PathBuf {
    profile().join("weir-tests-cache")
}

/// A file of `tests/peers`.
pub fn peers(path: &str) -> PathBuf {
    tests().join("peers").join(path)
}

/// A file of `tests`.
pub fn tests() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Node that all JavaScript peers run on.
///
/// # Panics
/// When the peers are not installed, with what to do.
pub fn node() -> PathBuf {
    installed(".tools/bin/node")
}

/// The Python that all Python peers run on.
///
/// # Panics
/// When the peers are not installed, with what to do.
pub fn python() -> PathBuf {
    installed(".venv/bin/python")
}

fn installed(path: &str) -> PathBuf {
    let found = peers(path);
    assert!(found.exists(), "{} is missing: run tests/peers/setup.sh", found.display());
    found
}

/// The directory of the build profile: the test itself runs in `deps` below it.
fn profile() -> PathBuf {
    let test = env::current_exe().expect("a running test has a path");
    test.parent().and_then(Path::parent).expect("a test is built into a directory below its profile").to_path_buf()
}
