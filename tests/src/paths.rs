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

/// A proxy of Go modules, as files, which `make go` writes.
pub fn go_proxy() -> PathBuf {
    profile().with_file_name("tools").join("go-proxy")
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

/// A program beside version 1 of the Python SDK.
///
/// # Panics
/// When the peers are not installed, with what to do.
pub fn python1(program: &str) -> PathBuf {
    installed(&format!(".venv-sdk1/bin/{program}"))
}

/// A file below `tests/peers` that `setup.sh` puts there.
///
/// # Panics
/// When the peers are not installed, with what to do.
pub fn installed(path: &str) -> PathBuf {
    let found = peers(path);
    assert!(found.exists(), "{} is missing: run tests/peers/setup.sh", found.display());
    found
}

/// The directory of the build profile: a program is in it, and a test in `deps` below it.
fn profile() -> PathBuf {
    let program = env::current_exe().expect("a running program has a path");
    let directory = program.parent().expect("a program is in a directory");
    let profile = if directory.ends_with("deps") { directory.parent() } else { Some(directory) };
    profile.expect("the directory of tests is in that of the profile").to_path_buf()
}
