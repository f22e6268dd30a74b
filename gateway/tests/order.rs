//! The one-way order of the gateway's modules, which only a test can keep within one crate.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn each_module_uses_only_those_before_it() {
    let order = modules();
    assert!(order.len() > 8, "{order:?}");
    for (place, module) in order.iter().enumerate() {
        for (file, text) in sources(module) {
            for used in used(&text) {
                let at = order.iter().position(|known| *known == used);
                assert!(
                    at.is_none_or(|at| at <= place),
                    "{} uses `{used}`, which comes after `{module}`",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn pingora_and_wasmtime_stay_in_their_corners() {
    for (crate_name, corners) in [("pingora", &["http", "server"][..]), ("wasmtime", &["policy"])] {
        for module in modules().iter().filter(|module| !corners.contains(&module.as_str())) {
            for (file, text) in sources(module) {
                assert!(!code(&text).contains(&format!("{crate_name}_")), "{} names {crate_name}", file.display());
                assert!(!code(&text).contains(&format!("{crate_name}::")), "{} names {crate_name}", file.display());
            }
        }
    }
}

#[test]
fn transports_are_told_apart_in_their_corners() {
    // `policy` turns them into the words of components.
    for module in modules().iter().filter(|module| !["policy", "upstream"].contains(&module.as_str())) {
        for (file, text) in sources(module) {
            for way in ["Http", "Sse", "Stdio"] {
                for name in [format!("Transport::{way}"), format!("Channel::{way}")] {
                    // `HttpTransport` is what the configuration says.
                    let whole = |before: &str| !before.ends_with(char::is_alphanumeric);
                    let code = code(&text);
                    let named = code.match_indices(&name).any(|(at, _)| whole(&code[..at]));
                    assert!(!named, "{} tells transports apart: {name}", file.display());
                }
            }
        }
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The modules in the order in which `lib.rs` lists them.
fn modules() -> Vec<String> {
    let text = fs::read_to_string(src().join("lib.rs")).unwrap();
    text.lines().filter_map(|line| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned())).collect()
}

fn sources(module: &str) -> Vec<(PathBuf, String)> {
    let mut files = vec![src().join(format!("{module}.rs"))];
    let mut folders = vec![src().join(module)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(&file).unwrap())).collect()
}

/// What is no comment.
fn code(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The names that follow `crate::`, alone or in braces.
fn used(text: &str) -> Vec<String> {
    let code = code(text);
    let mut names = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => names.push(rest),
            Some(group) => {
                let mut depth = 0;
                let mut start = 0;
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => {
                            names.push(&group[start..at]);
                            break;
                        }
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            names.push(&group[start..at]);
                            start = at + 1;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
        .into_iter()
        .map(|name| name.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned())
        .collect()
}
