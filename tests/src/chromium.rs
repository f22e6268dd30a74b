//! Chromium, or a browser made of it, for what no browser of our own can tell: how a page looks, and whether a person gets
//! through it.

use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, path::Path, path::PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::paths::{node, peers};

/// Long enough for a browser to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

/// Under which names it is installed.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The window of a browser.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// What pictures of it are called.
    pub name: &'static str,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// Whether its person likes it dark.
    pub is_dark: bool,
}

impl Window {
    /// A window in light colours.
    pub const fn light(name: &'static str, width: u32, height: u32) -> Self {
        Self { name, width, height, is_dark: false }
    }
}

/// What somebody sees after a page has come.
#[derive(Debug, Deserialize)]
pub struct Sight {
    /// Where they are.
    pub url: String,
    /// All that can be read.
    pub text: String,
    /// How wide the page is, in pixels; wider than the window if one has to scroll to the side.
    pub width: u32,
    /// How long the first of it took from the click until it was there, in milliseconds.
    pub paint: Option<f64>,
    /// What was fetched on the way, in order.
    pub fetched: Vec<String>,
    /// What the browser has to say of the page.
    pub complaints: Vec<String>,
    /// What of it keeps people out, as axe finds: only what is serious or critical.
    pub barriers: Vec<String>,
}

/// Opens `link` as `person` and presses the buttons with these words, one after another; gives what is seen at first and
/// after each. Scripts are off. Pictures are put into the folder `pictures`.
///
/// # Panics
/// When there is no such browser, or no such button.
pub async fn tour(window: Window, person: &str, link: &str, press: &[&str], pictures: &Path) -> Vec<Sight> {
    walk(window, person, link, &json!(press), pictures).await
}

/// The same with any steps: beside words of buttons `{"link": WORDS}`, `{"open": SUMMARY}` and `{"fill": [LABEL, TEXT]}`.
///
/// # Panics
/// As [`tour`].
pub async fn walk(window: Window, person: &str, link: &str, steps: &Value, pictures: &Path) -> Vec<Sight> {
    let Window { name, width, height, is_dark } = window;
    let tour = json!({
        "program": program(), "link": link, "steps": steps, "person": person, "width": width, "height": height,
        "scheme": if is_dark { "dark" } else { "light" }, "pictures": pictures.join(name),
    });
    let mut command = Command::new(node());
    command.arg(peers("clients/chromium.mjs")).arg(tour.to_string()).stdin(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let ended = timeout(LIMIT, command.kill_on_drop(true).output()).await;
    let ended = ended.expect("the browser ends in time").expect("node can be started");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let lines = String::from_utf8(ended.stdout).expect("JSON is UTF-8");
    lines.lines().map(|line| serde_json::from_str(line).expect("each line is what is seen")).collect()
}

/// `$WEIR_CHROMIUM`, or the first that is installed.
fn program() -> PathBuf {
    if let Some(named) = env::var_os("WEIR_CHROMIUM") {
        return named.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let all = env::split_paths(&path).flat_map(|folder| PROGRAMS.map(|program| folder.join(program)));
    let found = all.into_iter().find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("there is no browser: install chromium, or name one in WEIR_CHROMIUM"))
}
