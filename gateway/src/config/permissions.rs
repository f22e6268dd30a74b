//! Who may write a configuration: whoever can decides what Weir starts, and with which credentials.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Problem;

/// Writing by others, and by a group.
const OTHERS: u32 = 0o002;
const GROUP: u32 = 0o020;
/// In a folder with this bit only its owner replaces a file (inode(7)).
const STICKY: u32 = 0o1000;

/// What to warn of, if others can write the file or put another in its place. The group of this process is none of the
/// others: many systems give each user one of their own.
pub(super) fn warning(path: &Path) -> Option<Problem> {
    let group = rustix::process::getegid().as_raw();
    let is_open = |path: &Path, safe: u32| {
        let found = fs::metadata(path).ok()?;
        let mode = found.mode();
        let open = mode & OTHERS != 0 || (mode & GROUP != 0 && found.gid() != group);
        (open && mode & safe == 0).then_some(mode & 0o777)
    };
    let folder = match path.parent()? {
        folder if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder,
    };
    let (mode, what, shown) = match is_open(path, 0) {
        Some(mode) => (mode, "this file", path),
        None => (is_open(folder, STICKY)?, "the folder of this file", folder),
    };
    let message = format!("others can write {what} (mode {mode:o}), and so decide what Weir starts");
    let hint = Some(format!("chmod go-w {}", shown.display()));
    Some(Problem { file: path.to_owned(), at: None, message, hint })
}
