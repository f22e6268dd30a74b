//! npm `mcp-remote`, which stands between a client that speaks over a pipe and a server that wants a login: the yardstick
//! for what Weir does there.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::bridge::Bridge;
use crate::paths::{node, peers};
use crate::wait::until_some;

/// A folder for what it keeps, with a browser that notes which page it is told to open.
pub struct Remote {
    folder: TempDir,
}

impl Remote {
    /// One that nobody has signed in with yet.
    ///
    /// # Panics
    /// When there is no place for it.
    pub fn new() -> Self {
        let folder = TempDir::new().expect("a temporary directory can be made");
        let browser = folder.path().join("browser");
        let pages = folder.path().join("pages");
        fs::write(&browser, format!("#!/bin/sh\necho \"$1\" >> {}\n", pages.display())).expect("it can be written");
        fs::set_permissions(&browser, fs::Permissions::from_mode(0o700)).expect("it is ours");
        Self { folder }
    }

    /// The program that stands in for a browser.
    pub fn browser(&self) -> PathBuf {
        self.folder.path().join("browser")
    }

    /// Starts it at `url`.
    pub fn start(&self, url: &str, arguments: &[&str]) -> Bridge {
        let mut command = Command::new(node());
        command.arg(peers("node_modules/mcp-remote/dist/proxy.js")).arg(url).args(arguments);
        command.env("MCP_REMOTE_CONFIG_DIR", self.folder.path()).env("HOME", self.folder.path());
        command.env("BROWSER", self.browser()).env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
        Bridge::run(command)
    }

    /// The pages that the browser was told to open, until now.
    pub fn pages(&self) -> Vec<String> {
        let pages = fs::read_to_string(self.folder.path().join("pages")).unwrap_or_default();
        pages.lines().map(str::to_owned).collect()
    }

    /// The page of this number, counted from 0, as soon as it is opened.
    pub async fn page(&self, number: usize) -> String {
        until_some("a page is opened", || self.pages().get(number).cloned()).await
    }
}

impl Default for Remote {
    fn default() -> Self {
        Self::new()
    }
}
