//! Opens a page, where there is something to open it with.

use std::{
    env,
    process::{Command, Stdio},
};

use url::Url;

/// Whether a browser was started. It is told the page as one argument, which no shell reads.
pub(super) fn open(page: &Url) -> bool {
    let programs = if cfg!(target_os = "macos") { vec!["open".to_owned()] } else { on_a_desktop() };
    programs.iter().any(|program| {
        let mut command = Command::new(program);
        command.arg(page.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().is_ok()
    })
}

/// `$BROWSER` is a list, as in a path. Without a screen nothing can be opened, though `xdg-open` may well be there.
fn on_a_desktop() -> Vec<String> {
    let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let chosen = set("BROWSER").map(|all| all.split(':').map(str::to_owned).collect());
    let screen = set("DISPLAY").or_else(|| set("WAYLAND_DISPLAY")).is_some();
    chosen.unwrap_or_else(|| if screen { vec!["xdg-open".to_owned()] } else { Vec::new() })
}
