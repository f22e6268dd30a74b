//! The modules in `src/bindings` are what wit-bindgen makes of the contract. `UPDATE=1` writes them.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{env, fs, path::Path};

use wit_bindgen_core::{Files, WorldGenerator, wit_parser::Resolve};
use wit_bindgen_rust::{Opts, WithOption};

/// What the worlds have in common is made once, in the module of the first.
const COMMON: [&str; 7] = ["types", "log", "clock", "random", "secrets", "http", "store"];
const WORLDS: [&str; 3] = ["connection", "credentials", "calls"];

/// What wit-bindgen makes of a world, and in what module.
fn bindings(contract: &Path, module: &str) -> String {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(contract).unwrap();
    let world = resolve.select_world(&[package], Some(&format!("{module}-policy"))).unwrap();
    let first = WORLDS[0];
    let with = |name: &&str| {
        let path = format!("super::{first}::weir::policy::{name}");
        (format!("weir:policy/{name}@0.1.0"), WithOption::Path(path))
    };
    let options = Opts {
        format: true,
        additional_derive_attributes: ["PartialEq", "Eq", "Hash"].map(str::to_owned).to_vec(),
        pub_export_macro: true,
        export_macro_name: Some(format!("export_{module}")),
        default_bindings_module: Some(format!("weir_policy::bindings::{module}")),
        type_section_suffix: Some(module.to_owned()),
        with: COMMON.iter().filter(|_| module != first).map(with).collect(),
        generate_all: module == first,
        ..Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).unwrap();
    let (_, text) = files.iter().next().unwrap();
    String::from_utf8(text.to_vec()).unwrap()
}

#[test]
fn the_bindings_are_those_of_the_contract() {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR"));
    for module in WORLDS {
        let path = kit.join("src/bindings").join(module).with_extension("rs");
        let made = bindings(&kit.join("wit"), module);
        if env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, made).unwrap();
            continue;
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == made, "{} is not what the contract says: run this test with UPDATE=1", path.display());
    }
}
