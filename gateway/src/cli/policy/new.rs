//! `weir policy new`: a policy to start from, with everything that it is built with.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use flate2::read::GzDecoder;

use super::terminal;

/// A file of the tree: of the templates, or of the kit.
macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../../../../guest/templates/", $path))
    };
    (kit $path:literal) => {
        (concat!("weir-policy/", $path), include_str!(concat!("../../../../guest/kit/", $path)))
    };
}

/// The kit, which goes along with a policy in Rust.
const KIT: [(&str, &str); 9] = [
    template!(kit "README.md"),
    template!(kit "src/bindings.rs"),
    template!(kit "src/calls.rs"),
    template!(kit "src/capability.rs"),
    template!(kit "src/json.rs"),
    template!(kit "src/lib.rs"),
    template!(kit "src/settings.rs"),
    template!(kit "src/words.rs"),
    template!(kit "wit/policy.wit"),
];

/// What is long in the kit, compressed by the build script.
macro_rules! bindings {
    ($name:literal) => {
        (concat!("weir-policy/src/bindings/", $name), include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz")))
    };
}

const BINDINGS: [(&str, &[u8]); 3] = [bindings!("calls.rs"), bindings!("connection.rs"), bindings!("credentials.rs")];

/// The contract.
const CONTRACT: &str = include_str!("../../../../wit/policy.wit");
const README: &str = template!("README.md");
const WORLD: &str = template!("world.wit");

/// The language of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Language {
    /// Small and quick; needs cargo and the target wasm32-wasip2.
    Rust,
    /// With QuickJS, 1 MB; needs npm.
    Js,
    /// With CPython, 18 MB; needs python3.
    Python,
    /// With Go's runtime, 4 MB; needs go, wit-bindgen and wasm-tools.
    Go,
}

/// What a policy decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Interface {
    /// How an upstream is reached.
    Connection,
    /// Which credential opens an upstream.
    Credentials,
    /// What becomes of calls.
    Calls,
}

impl Language {
    const fn name(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Js => "JavaScript",
            Self::Python => "Python",
            Self::Go => "Go",
        }
    }

    /// What `weir policy build` runs.
    const fn command(self) -> &'static str {
        match self {
            Self::Rust => "cargo build --release --target wasm32-wasip2",
            Self::Js => "npm install && npm run build",
            Self::Python => "componentize-py -d wit -w policy componentize policy -o policy.wasm",
            Self::Go => "wit-bindgen go, go build, wasm-tools component embed, wasm-tools component new",
        }
    }
}

impl Interface {
    const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Credentials => "credentials",
            Self::Calls => "calls",
        }
    }

    /// The file with the code. In Go it is a package of the name that the bindings import.
    fn source(self, language: Language) -> &'static str {
        match (language, self) {
            (Language::Rust, _) => "src/lib.rs",
            (Language::Js, _) => "policy.js",
            (Language::Python, _) => "policy.py",
            (Language::Go, Self::Connection) => "export_weir_policy_connection/policy.go",
            (Language::Go, Self::Credentials) => "export_weir_policy_credentials/policy.go",
            (Language::Go, Self::Calls) => "export_weir_policy_calls/policy.go",
        }
    }

    fn code(self, language: Language) -> &'static str {
        match (language, self) {
            (Language::Rust, Self::Connection) => template!("rust/connection.rs"),
            (Language::Rust, Self::Credentials) => template!("rust/credentials.rs"),
            (Language::Rust, Self::Calls) => template!("rust/calls.rs"),
            (Language::Js, Self::Connection) => template!("js/connection.js"),
            (Language::Js, Self::Credentials) => template!("js/credentials.js"),
            (Language::Js, Self::Calls) => template!("js/calls.js"),
            (Language::Python, Self::Connection) => template!("python/connection.py"),
            (Language::Python, Self::Credentials) => template!("python/credentials.py"),
            (Language::Python, Self::Calls) => template!("python/calls.py"),
            (Language::Go, Self::Connection) => template!("go/connection.go"),
            (Language::Go, Self::Credentials) => template!("go/credentials.go"),
            (Language::Go, Self::Calls) => template!("go/calls.go"),
        }
    }

    const fn cases(self) -> &'static str {
        match self {
            Self::Connection => template!("cases/connection.json"),
            Self::Credentials => template!("cases/credentials.json"),
            Self::Calls => template!("cases/calls.json"),
        }
    }
}

pub(super) fn run(path: &Path, language: Language, interface: Interface) -> anyhow::Result<ExitCode> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    ensure!(
        name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(is_letter),
        "`{name}` cannot be its name: begin with a small letter, and go on with small letters, digits and `-`"
    );
    let files = files(name, language, interface)?;
    fs::create_dir(path).with_context(|| format!("the folder {} cannot be made", path.display()))?;
    for (file, text) in files {
        let file = path.join(file);
        let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, text));
        written.with_context(|| format!("{} cannot be written", file.display()))?;
    }
    let (folder, source) = (path.display(), interface.source(language));
    terminal::say(format_args!(
        "{folder} has a policy about {} in {}: {folder}/{source}.\nNext:\n  cd {folder}\n  weir policy build\n  weir policy test \
         policy.wasm",
        interface.name(),
        language.name(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn files(name: &str, language: Language, interface: Interface) -> io::Result<Vec<(PathBuf, String)>> {
    let wit = if language == Language::Rust { "weir-policy/wit/policy.wit" } else { "wit/deps/weir-policy/policy.wit" };
    // The tools of these languages import all that their world has.
    let grants = if matches!(language, Language::Js | Language::Python) { "[\"log\"]" } else { "[]" };
    let filled = |text: &str| {
        text.replace("NAME", name)
            .replace("INTERFACE", interface.name())
            .replace("LANGUAGE", language.name())
            .replace("SOURCE", interface.source(language))
            .replace("COMMAND", language.command())
            .replace("GRANTS", grants)
            .replace("WIT", wit)
    };
    let mut files = vec![
        ("README.md", filled(README)),
        ("cases/first.json", interface.cases().to_owned()),
        (interface.source(language), interface.code(language).to_owned()),
    ];
    match language {
        Language::Rust => {
            files.extend(KIT.map(|(path, text)| (path, text.to_owned())));
            for (path, compressed) in BINDINGS {
                files.push((path, io::read_to_string(GzDecoder::new(compressed))?));
            }
            files.push(("weir-policy/Cargo.toml", template!("rust/kit.toml.txt").to_owned()));
            files.push(("Cargo.toml", filled(template!("rust/Cargo.toml.txt"))));
            files.push((".gitignore", "target\npolicy.wasm\n".to_owned()));
        }
        Language::Js => {
            files.push(("package.json", filled(template!("js/package.json"))));
            files.push(("weir-policy.d.ts", template!("js/weir-policy.d.ts").to_owned()));
            files.push((".gitignore", "node_modules\npolicy.wasm\n".to_owned()));
        }
        Language::Python => {
            files.push(("requirements.txt", template!("python/requirements.txt").to_owned()));
            files.push((".gitignore", ".venv\npolicy.wasm\n".to_owned()));
        }
        Language::Go => {
            files.push(("go.mod", template!("go/go.mod.txt").to_owned()));
            files.push((".gitignore", "weir_policy_*\nwit_exports.go\n.weir\npolicy.wasm\n".to_owned()));
        }
    }
    if language != Language::Rust {
        files.push(("wit/world.wit", filled(WORLD)));
        files.push((wit, CONTRACT.to_owned()));
    }
    Ok(files.into_iter().map(|(path, text)| (path.into(), text)).collect())
}
