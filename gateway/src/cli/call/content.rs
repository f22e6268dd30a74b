//! Results on standard output: text as it is, structured content as JSON, and what is neither named or saved as files.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::image;
use crate::cli::terminal;

/// How many names are tried for a file before there is none.
const NAMES: usize = 1000;

/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 100;

/// What files of these types end with.
const EXTENSIONS: [(&str, &str); 16] = [
    ("application/json", "json"),
    ("application/pdf", "pdf"),
    ("application/zip", "zip"),
    ("audio/mpeg", "mp3"),
    ("audio/ogg", "ogg"),
    ("audio/wav", "wav"),
    ("audio/x-wav", "wav"),
    ("image/gif", "gif"),
    ("image/jpeg", "jpg"),
    ("image/png", "png"),
    ("image/svg+xml", "svg"),
    ("image/webp", "webp"),
    ("text/html", "html"),
    ("text/markdown", "md"),
    ("text/plain", "txt"),
    ("video/mp4", "mp4"),
];

#[derive(Debug, Args)]
pub(super) struct ResultOptions {
    /// How the result is printed: for people, or the raw JSON of the server.
    #[arg(short, long, value_enum, default_value_t = ResultFormat::Text)]
    output: ResultFormat,
    /// Save images, audio and other binary content in this folder. No file is overwritten.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResultFormat {
    Text,
    Json,
}

impl ResultOptions {
    /// The result of `tools/call`; 1 for an error of the tool.
    pub(super) fn show_call(&self, raw: &Bytes) -> anyhow::Result<ExitCode> {
        let result: Value = serde_json::from_slice(raw).unwrap_or_default();
        let blocks = list(&result["content"]);
        let structured = result.get("structuredContent").filter(|content| !content.is_null());
        // Servers repeat structured content as text, for clients that do not know it.
        let repeats = |block: &Value| {
            let text = block["text"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
            text.is_some() && text.as_ref() == structured
        };
        self.show(raw, blocks.iter().filter(|block| !repeats(block)))?;
        if let (Some(content), ResultFormat::Text) = (structured, self.output) {
            terminal::put_json(&serde_json::to_string_pretty(content)?)?;
        }
        if result["isError"] != true {
            return Ok(ExitCode::SUCCESS);
        }
        terminal::complain("The tool answered with an error.");
        Ok(ExitCode::FAILURE)
    }

    /// The result of `resources/read`.
    pub(super) fn show_resource(&self, raw: &Bytes) -> anyhow::Result<ExitCode> {
        let result: Value = serde_json::from_slice(raw).unwrap_or_default();
        let contents: Vec<Value> = list(&result["contents"])
            .iter()
            .map(|resource| json!({ "type": "resource", "resource": resource }))
            .collect();
        self.show(raw, contents.iter())?;
        Ok(ExitCode::SUCCESS)
    }

    /// The result of `prompts/get`.
    pub(super) fn show_prompt(&self, raw: &Bytes) -> anyhow::Result<ExitCode> {
        let result: Value = serde_json::from_slice(raw).unwrap_or_default();
        if self.output == ResultFormat::Json {
            self.show(raw, [].into_iter())?;
            return Ok(ExitCode::SUCCESS);
        }
        for message in list(&result["messages"]) {
            terminal::say(format_args!("[{}]", message["role"].as_str().unwrap_or("nobody")))?;
            self.show(raw, std::iter::once(&message["content"]))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show<'b>(&self, raw: &Bytes, blocks: impl Iterator<Item = &'b Value>) -> anyhow::Result<()> {
        let is_json = self.output == ResultFormat::Json;
        if is_json {
            let raw = std::str::from_utf8(raw).context("the result is no UTF-8 text")?;
            terminal::put_json(&raw.replace(['\n', '\r'], " "))?;
        }
        for block in blocks {
            let binary = Binary::of(block);
            match (&binary, &self.save) {
                (Some(binary), Some(folder)) => {
                    let path = binary.save(folder)?;
                    let line = format!("saved {}, {} bytes, as {}", binary.kind, binary.bytes.len(), path.display());
                    // In JSON there is no place for it.
                    if is_json { terminal::complain(line) } else { terminal::say(line)? }
                }
                (Some(binary), None) if !is_json => {
                    let shown = image::show(&binary.bytes)?;
                    let what = if shown { "" } else { "; `--save DIR` saves it as a file" };
                    terminal::complain(format_args!("{}, {} bytes{what}", binary.kind, binary.bytes.len()));
                }
                (None, _) if !is_json => show_text(block)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Shows what is no binary content.
fn show_text(block: &Value) -> io::Result<()> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match block["type"].as_str() {
        Some("text") => terminal::put(block["text"].as_str().unwrap_or_default()),
        Some("resource") if block["resource"]["text"].is_string() => {
            terminal::put(block["resource"]["text"].as_str().unwrap_or_default())
        }
        Some("resource_link") => {
            let about = ["name", "mimeType", "description"].into_iter().filter_map(|key| text(&block[key]));
            let about = about.collect::<Vec<_>>().join("  ");
            terminal::say(format_args!("{}  {about}", block["uri"].as_str().unwrap_or_default()))
        }
        _ => terminal::put_json(&block.to_string()),
    }
}

/// Content that is no text.
struct Binary {
    /// Its media type.
    kind: String,
    bytes: Vec<u8>,
    /// What a file of it is called, without its folder.
    name: String,
}

impl Binary {
    /// None for content that is text, or cannot be decoded.
    fn of(block: &Value) -> Option<Self> {
        let (holder, data, noun) = match block["type"].as_str()? {
            "resource" => (&block["resource"], &block["resource"]["blob"], "resource"),
            noun @ ("image" | "audio") => (block, &block["data"], noun),
            _ => return None,
        };
        let bytes = STANDARD.decode(data.as_str()?).ok()?;
        let kind = holder["mimeType"].as_str().unwrap_or("application/octet-stream").to_owned();
        let known = EXTENSIONS.iter().find(|(of, _)| *of == kind.split(';').next().unwrap_or_default().trim());
        let extension = known.map_or("bin", |(_, extension)| extension);
        let name = match holder["uri"].as_str().and_then(file_name) {
            Some(name) if name.contains('.') => name,
            Some(name) => format!("{name}.{extension}"),
            None => format!("{noun}.{extension}"),
        };
        Some(Self { kind, bytes, name })
    }

    /// Writes it to a file that was not there before.
    fn save(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let shown = || folder.display().to_string();
        fs::create_dir_all(folder).with_context(shown)?;
        let (stem, extension) = self.name.rsplit_once('.').unwrap_or((&self.name, "bin"));
        for number in 1..=NAMES {
            let name = if number == 1 { self.name.clone() } else { format!("{stem}-{number}.{extension}") };
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    file.write_all(&self.bytes).with_context(|| path.display().to_string())?;
                    return Ok(path);
                }
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
                Err(why) => return Err(why).with_context(|| path.display().to_string()),
            }
        }
        anyhow::bail!("{} has {NAMES} files like {} already", shown(), self.name)
    }
}

/// The last part of an address as a name that is safe in any folder; none if nothing is left of it.
fn file_name(uri: &str) -> Option<String> {
    let path = uri.split(['?', '#']).next()?;
    let path = path.split_once("://").map_or(path, |(_, path)| path);
    let last = path.trim_end_matches('/').rsplit('/').next()?;
    let letter = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let name: String = last.chars().map(letter).take(LONGEST_NAME).collect();
    // No file is hidden, and none is the folder itself or the one above.
    let name = name.trim_matches('.');
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_name_from_an_address_stays_in_its_folder() {
        for (uri, name) in [
            ("file:///a/logo.png?x=/../y", Some("logo.png")),
            ("demo://../..", None),
            ("demo://x/..%2f..%2fetc", Some("_2f.._2fetc")),
            ("demo://x/.bashrc", Some("bashrc")),
            ("ui://chart/", Some("chart")),
            ("", None),
        ] {
            assert_eq!(file_name(uri).as_deref(), name, "{uri}");
        }
    }

    #[test]
    fn no_file_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let block = json!({ "type": "image", "mimeType": "image/png", "data": "AAEC" });
        let binary = Binary::of(&block).unwrap();
        let paths: Vec<PathBuf> = (0..3).map(|_| binary.save(folder.path()).unwrap()).collect();
        let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["image.png", "image-2.png", "image-3.png"]);
        assert!(paths.iter().all(|path| fs::read(path).unwrap() == [0, 1, 2]));
    }

    #[test]
    fn only_what_is_no_text_is_binary() {
        assert!(Binary::of(&json!({ "type": "text", "text": "x" })).is_none());
        assert!(Binary::of(&json!({ "type": "image", "data": "not base64!" })).is_none());
        assert!(Binary::of(&json!({ "type": "resource", "resource": { "text": "x" } })).is_none());
        let blob = json!({ "type": "resource", "resource": { "uri": "demo://a/b", "blob": "AAEC", "mimeType": "audio/wav; x=1" } });
        let blob = Binary::of(&blob).unwrap();
        assert_eq!((blob.name.as_str(), blob.bytes.len()), ("b.wav", 3));
    }
}
