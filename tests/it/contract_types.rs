//! TypeScript's declarations of the contract, for policies in JavaScript: made of `wit/policy.wit`, and checked with the
//! compiler over everything that is to start from.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use weir_tests::paths;
use wit_parser::{Docs, Function, Interface, Resolve, Type, TypeDefKind, TypeOwner};

/// The declarations of a package: a module for each interface, as the tools for JavaScript name them.
struct Declarations<'a> {
    contract: &'a Resolve,
    text: String,
}

impl Declarations<'_> {
    fn of(contract: &Resolve) -> String {
        let head = "// The contract of policies for Weir, made of `policy.wit`. Do not edit it.\n";
        let mut all = Declarations { contract, text: head.to_owned() };
        for (_, interface) in &contract.interfaces {
            all.interface(interface);
        }
        all.text
    }

    fn interface(&mut self, interface: &Interface) {
        let name = interface.name.as_deref().unwrap();
        self.text.push('\n');
        self.docs("", &interface.docs);
        writeln!(self.text, "declare module \"weir:policy/{name}@0.1.0\" {{").unwrap();
        for (name, id) in &interface.types {
            let definition = &self.contract.types[*id];
            self.docs("  ", &definition.docs);
            let name = camel(name, true);
            match &definition.kind {
                TypeDefKind::Record(record) => {
                    writeln!(self.text, "  export interface {name} {{").unwrap();
                    for field in &record.fields {
                        self.docs("    ", &field.docs);
                        let optional = if self.is_option(&field.ty) { "?" } else { "" };
                        let (field, ty) = (camel(&field.name, false), self.ty(&field.ty));
                        writeln!(self.text, "    {field}{optional}: {ty};").unwrap();
                    }
                    self.text.push_str("  }\n");
                }
                TypeDefKind::Enum(of) => {
                    let cases = of.cases.iter().map(|case| (format!("\"{}\"", case.name), &case.docs));
                    self.union(&name, cases.collect());
                }
                TypeDefKind::Variant(of) => {
                    let case = |case: &wit_parser::Case| match &case.ty {
                        Some(ty) => format!("{{ tag: \"{}\"; val: {} }}", case.name, self.ty(ty)),
                        None => format!("{{ tag: \"{}\" }}", case.name),
                    };
                    let cases = of.cases.iter().map(|of| (case(of), &of.docs)).collect();
                    self.union(&name, cases);
                }
                // One that another interface has, under the same name.
                TypeDefKind::Type(Type::Id(other)) if self.home(*other).is_some() => {
                    let home = self.home(*other).unwrap().to_owned();
                    writeln!(self.text, "  export type {name} = import(\"weir:policy/{home}@0.1.0\").{name};").unwrap();
                }
                kind => {
                    let ty = self.kind(kind);
                    writeln!(self.text, "  export type {name} = {ty};").unwrap();
                }
            }
        }
        interface.functions.values().for_each(|function| self.function(function));
        self.text.push_str("}\n");
    }

    fn function(&mut self, function: &Function) {
        self.docs("  ", &function.docs);
        let params =
            function.params.iter().map(|param| format!("{}: {}", camel(&param.name, false), self.ty(&param.ty)));
        let (params, name) = (params.collect::<Vec<_>>().join(", "), camel(&function.name, false));
        let result = function.result.as_ref().map_or("void".to_owned(), |ty| self.ty(ty));
        // A word of the language can only be the name of an export.
        let is_reserved = name == "delete";
        let (mark, verb) = if is_reserved { ("_", "") } else { ("", "export ") };
        writeln!(self.text, "  {verb}function {mark}{name}({params}): {result};").unwrap();
        if is_reserved {
            writeln!(self.text, "  export {{ _{name} as {name} }};").unwrap();
        }
    }

    fn union(&mut self, name: &str, cases: Vec<(String, &Docs)>) {
        writeln!(self.text, "  export type {name} =").unwrap();
        for (case, docs) in cases {
            self.docs("    ", docs);
            writeln!(self.text, "    | {case}").unwrap();
        }
        // The line of the last case ends the type.
        self.text.insert(self.text.len() - 1, ';');
    }

    fn docs(&mut self, indent: &str, docs: &Docs) {
        let Some(text) = &docs.contents else { return };
        let text = text.trim().replace('\n', &format!("\n{indent} * "));
        let text = if text.contains('\n') { format!("\n{indent} * {text}\n{indent}") } else { format!(" {text}") };
        writeln!(self.text, "{indent}/**{text} */").unwrap();
    }

    /// The interface in which a type is defined, if it has a name there.
    fn home(&self, id: wit_parser::TypeId) -> Option<&str> {
        let TypeOwner::Interface(owner) = self.contract.types[id].owner else { return None };
        self.contract.types[id].name.as_ref().and(self.contract.interfaces[owner].name.as_deref())
    }

    fn is_option(&self, ty: &Type) -> bool {
        matches!(ty, Type::Id(id) if matches!(self.contract.types[*id].kind, TypeDefKind::Option(_)))
    }

    fn ty(&self, ty: &Type) -> String {
        match ty {
            Type::Bool => "boolean".to_owned(),
            Type::U64 | Type::S64 => "bigint".to_owned(),
            Type::String | Type::Char => "string".to_owned(),
            Type::Id(id) => match &self.contract.types[*id].name {
                Some(name) => camel(name, true),
                None => self.kind(&self.contract.types[*id].kind),
            },
            _ => "number".to_owned(),
        }
    }

    fn kind(&self, kind: &TypeDefKind) -> String {
        match kind {
            TypeDefKind::List(Type::U8) => "Uint8Array".to_owned(),
            TypeDefKind::List(of) => format!("Array<{}>", self.ty(of)),
            TypeDefKind::Option(of) => format!("{} | null | undefined", self.ty(of)),
            TypeDefKind::Tuple(of) => {
                format!("[{}]", of.types.iter().map(|ty| self.ty(ty)).collect::<Vec<_>>().join(", "))
            }
            // What goes wrong is thrown.
            TypeDefKind::Result(of) => of.ok.as_ref().map_or("void".to_owned(), |ty| self.ty(ty)),
            TypeDefKind::Type(ty) => self.ty(ty),
            other => panic!("the contract has had no {} so far", other.as_str()),
        }
    }
}

/// A name of the contract as JavaScript has it.
fn camel(name: &str, mut upper: bool) -> String {
    let mut camel = String::new();
    for letter in name.trim_start_matches('%').chars() {
        match letter {
            '-' => upper = true,
            letter if std::mem::take(&mut upper) => camel.push(letter.to_ascii_uppercase()),
            letter => camel.push(letter),
        }
    }
    camel
}

/// What the compiler of TypeScript says of files.
fn compiled(files: &[&Path]) -> (bool, String) {
    let mut command = Command::new(paths::node());
    command.arg(paths::peers("node_modules/typescript/bin/tsc"));
    command.args(["--noEmit", "--strict", "--allowJs", "--target", "esnext", "--module", "esnext"]);
    let output = command.args(["--moduleResolution", "bundler"]).args(files).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_declarations_for_javascript_are_those_of_the_contract() {
    let guest = paths::tests().with_file_name("guest");
    let mut contract = Resolve::default();
    contract.push_file(guest.with_file_name("wit").join("policy.wit")).unwrap();
    let (file, made) = (guest.join("templates/js/weir-policy.d.ts"), Declarations::of(&contract));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &made).unwrap();
    }
    assert!(fs::read_to_string(&file).is_ok_and(|there| there == made), "run it once with UPDATE=1");
}

#[test]
fn policies_in_javascript_fit_the_declarations() {
    let guest = paths::tests().with_file_name("guest");
    let templates = ["calls", "connection", "credentials"].map(|name| guest.join(format!("templates/js/{name}.js")));
    let example = guest.join("examples/javascript/policy.js");
    for file in templates.iter().chain([&example]) {
        let (fits, said) = compiled(&[file]);
        assert!(fits, "{}: {said}", file.display());
    }
    // What does not fit is seen.
    let folder = tempfile::tempdir().unwrap();
    fs::copy(guest.join("templates/js/weir-policy.d.ts"), folder.path().join("weir-policy.d.ts")).unwrap();
    let wrong = fs::read_to_string(&templates[0]).unwrap().replace("ttlSeconds: 60", "ttlSeconds: \"60\"");
    let file = folder.path().join("policy.js");
    fs::write(&file, wrong).unwrap();
    let (fits, said) = compiled(&[&file]);
    assert!(!fits && said.contains("ttlSeconds"), "{said}");
}
