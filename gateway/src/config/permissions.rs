//! Who may write a configuration: whoever can decides what Weir starts, and with which credentials.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Problem;

/// Writing by others, and by a group.
const OTHERS: u32 = 0o002;
const GROUP: u32 = 0o020;
/// In a folder with this bit only its owner replaces a file (inode(7)).
const STICKY: u32 = 0o1000;

/// A file or folder that others can write.
pub struct OpenPath {
    /// Where it is.
    pub path: PathBuf,
    mode: u32,
    what: &'static str,
}

impl OpenPath {
    /// The command that closes it.
    #[must_use]
    pub fn repair(&self) -> String {
        format!("chmod go-w {}", self.path.display())
    }
}

/// What others can write so that they decide what is in the file: the file, or its folder, where they could put another in
/// its place. The group of this process is none of the others: many systems give each user one of their own.
#[must_use]
pub fn writable_by_others(path: &Path) -> Option<OpenPath> {
    let group = rustix::process::getegid().as_raw();
    let open = |path: &Path, what, safe: u32| {
        let found = fs::metadata(path).ok()?;
        let mode = found.mode();
        let is_open = mode & OTHERS != 0 || (mode & GROUP != 0 && found.gid() != group);
        (is_open && mode & safe == 0).then(|| OpenPath { path: path.to_owned(), mode: mode & 0o777, what })
    };
    let folder = match path.parent()? {
        folder if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder,
    };
    open(path, "this file", 0).or_else(|| open(folder, "the folder of this file", STICKY))
}

/// What to warn of, if others can write the file or put another in its place.
pub(super) fn warning(path: &Path) -> Option<Problem> {
    let open = writable_by_others(path)?;
    let OpenPath { mode, what, .. } = &open;
    let message = format!("others can write {what} (mode {mode:o}), and so decide what Weir starts");
    Some(Problem { file: path.to_owned(), at: None, message, hint: Some(open.repair()) })
}
