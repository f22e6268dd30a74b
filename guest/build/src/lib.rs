//! Builds policies into components, for build scripts.
//!
//! A guest is compiled for `wasm32-unknown-unknown`, which knows no WASI, and wrapped into a component that imports what it
//! calls and nothing else. It is built by a cargo of its own in a directory of its own, so that it cannot wait for the lock
//! of the build that runs it, and without the flags and wrappers meant for that build.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use thiserror::Error;
use wit_component::ComponentEncoder;

/// Flags of the build around this one, which would be wrong or fatal for a guest.
const NOT_FOR_GUESTS: [&str; 8] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_RUSTFLAGS",
];
/// The stack of a guest in bytes. The default of one MiB would be most of its memory.
const STACK: u32 = 128 << 10;

/// Why there is no component.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The guest does not compile; cargo has said why.
    #[error("{guest} does not build for {target}; if the target is missing, run: rustup target add {target}\n{output}")]
    Cargo {
        /// The guest's directory.
        guest: String,
        /// The target triple.
        target: &'static str,
        /// What cargo said.
        output: String,
    },
    /// The module cannot be made a component.
    #[error("{guest} is no component: {reason}")]
    Component {
        /// The guest's directory.
        guest: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or program cannot be used.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        error: io::Error,
    },
}

/// Builds the crate in `guest` into a component without WASI, and answers with its path: `<out>/<name of the directory>.wasm`.
pub fn component(guest: &Path, out: &Path) -> Result<PathBuf, BuildError> {
    let module = compile(guest, out, "wasm32-unknown-unknown")?;
    let bytes = fs::read(&module).map_err(at(&module))?;
    let component =
        ComponentEncoder::default().validate(true).module(&bytes).and_then(|mut encoder| encoder.encode()).map_err(
            |error| BuildError::Component { guest: guest.display().to_string(), reason: format!("{error:#}") },
        )?;
    write(guest, out, &component)
}

/// The same with WASI, as the standard library of `wasm32-wasip2` wants it.
pub fn wasi_component(guest: &Path, out: &Path) -> Result<PathBuf, BuildError> {
    let module = compile(guest, out, "wasm32-wasip2")?;
    let component = fs::read(&module).map_err(at(&module))?;
    write(guest, out, &component)
}

/// Tells cargo to run the build script again when anything below these directories changes.
#[allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]
pub fn rerun_if_changed(directories: &[&Path]) {
    for directory in directories {
        println!("cargo::rerun-if-changed={}", directory.display());
    }
}

/// Compiles the guest, and answers with the path of what the linker wrote.
fn compile(guest: &Path, out: &Path, target: &'static str) -> Result<PathBuf, BuildError> {
    let manifest = guest.join("Cargo.toml");
    let package = package(&manifest)?;
    let directory = shared(out).join("guests");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--lib", "--profile", "guest", "--target", target, "--manifest-path"]).arg(&manifest);
    cargo.arg("--target-dir").arg(&directory).env("CARGO_ENCODED_RUSTFLAGS", flags(guest)?);
    for name in NOT_FOR_GUESTS.iter().filter(|name| **name != "CARGO_ENCODED_RUSTFLAGS") {
        cargo.env_remove(name);
    }
    let output = cargo.output().map_err(at(Path::new("cargo")))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(BuildError::Cargo { guest: guest.display().to_string(), target, output });
    }
    Ok(directory.join(target).join("guest").join(format!("{}.wasm", package.replace('-', "_"))))
}

/// The target directory of the build that runs this one, which cargo has tagged: what guests have in common, above all
/// their macros, is compiled once for all profiles and all build scripts. Where there is none, `out` itself.
fn shared(out: &Path) -> &Path {
    out.ancestors().find(|path| path.join("CACHEDIR.TAG").is_file()).unwrap_or(out)
}

/// The name of the package: the first line `name = "…"` of its manifest.
fn package(manifest: &Path) -> Result<String, BuildError> {
    let text = fs::read_to_string(manifest).map_err(at(manifest))?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned).ok_or_else(|| BuildError::Component {
        guest: manifest.display().to_string(),
        reason: "its manifest has no line name = \"…\"".to_owned(),
    })
}

/// A small stack, and no paths of this machine in panic messages, so that every machine builds the same bytes.
fn flags(guest: &Path) -> Result<String, BuildError> {
    let mut flags = vec![format!("-Clink-arg=-zstack-size={STACK}")];
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    if let Some(home) = home {
        flags.push(format!("--remap-path-prefix={}=cargo", home.display()));
    }
    let guest = guest.canonicalize().map_err(at(guest))?;
    flags.push(format!("--remap-path-prefix={}=guest", guest.display()));
    Ok(flags.join("\u{1f}"))
}

fn write(guest: &Path, out: &Path, component: &[u8]) -> Result<PathBuf, BuildError> {
    let name = guest.file_name().unwrap_or(guest.as_os_str());
    let path = out.join(name).with_extension("wasm");
    fs::write(&path, component).map_err(at(&path))?;
    Ok(path)
}

/// Says which file it was.
fn at(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.display().to_string();
    move |error| BuildError::Io { path, error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use super::*;

    #[test]
    fn finds_the_package_of_a_manifest() {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert_eq!(package(&ours).unwrap(), "weir-guest-build");
        let missing = package(Path::new("nowhere/Cargo.toml")).unwrap_err();
        assert!(missing.to_string().starts_with("nowhere/Cargo.toml: "), "{missing}");
    }

    #[test]
    fn guests_share_the_tagged_directory() {
        let target = env::temp_dir().join(format!("weir-guest-build-{}", std::process::id()));
        let out = target.join("debug/build/x-0123/out");
        fs::create_dir_all(&out).unwrap();
        assert_eq!(shared(Path::new("no/such/place")), Path::new("no/such/place"));
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(shared(&out), target);
        fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn no_path_of_this_machine_stays_in_a_guest() {
        let guest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let flags = flags(guest).unwrap();
        assert!(flags.split('\u{1f}').any(|flag| flag == format!("--remap-path-prefix={}=guest", guest.display())));
    }
}
