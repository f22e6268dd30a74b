//! `SECURITY.md` names a test for each defence: each of them is there.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{fs, path::Path};

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let code =
        ["gateway", "guest", "tests"].iter().flat_map(|part| sources(&root.join(part))).collect::<Vec<_>>().join("\n");
    let defences: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    assert!(defences.len() > 20, "the tables of SECURITY.md are not found any more");
    let mut missing = Vec::new();
    for test in defences.iter().filter_map(|row| row.split(" | ").nth(2)).flat_map(names) {
        if !code.contains(&format!("fn {test}(")) {
            missing.push(test);
        }
    }
    assert!(missing.is_empty(), "SECURITY.md names tests that do not exist: {missing:?}");
}

/// What stands between backticks and can be the name of a test.
fn names(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.contains('_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).collect()
}

fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(name.as_str(), "target" | "node_modules") && !name.starts_with('.') {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
    found
}
