//! Where the configuration is looked for. The first file that exists is read as a whole; the others count for nothing.

use std::{env, ffi::OsString, path::PathBuf};

/// The configuration in the current folder.
pub const DEFAULT_FILE: &str = "weir.toml";

/// The variable that names a configuration.
const VARIABLE: &str = "WEIR_CONFIG";

/// The configuration of the whole machine.
const SYSTEM_FILE: &str = "/etc/weir/weir.toml";

/// A place where a configuration may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The file.
    pub path: PathBuf,
    /// Whose configuration it is.
    pub origin: &'static str,
}

/// The places, the first of them first. A file that `WEIR_CONFIG` names stands alone: if it does not exist, that is an
/// error and no reason to read another.
#[must_use]
pub fn layers() -> Vec<Layer> {
    layers_of(|name| env::var_os(name))
}

/// The configuration that a command uses if `--config` names none. It may not exist yet.
#[must_use]
pub fn default_file() -> PathBuf {
    first(layers())
}

fn layers_of(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Layer> {
    let layer = |path: PathBuf, origin| Layer { path, origin };
    let variable = |name| variable(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = variable(VARIABLE) {
        return vec![layer(path, VARIABLE)];
    }
    // XDG Base Directory Specification: only absolute paths count.
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let user = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let user = user.map(|folder| layer(folder.join("weir").join(DEFAULT_FILE), "the user"));
    let here = layer(DEFAULT_FILE.into(), "the current folder");
    [Some(here), user, Some(layer(SYSTEM_FILE.into(), "the machine"))].into_iter().flatten().collect()
}

fn first(mut layers: Vec<Layer>) -> PathBuf {
    let found = layers.iter().position(|layer| layer.path.exists()).unwrap_or_default();
    layers.swap_remove(found).path
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{fs, path::Path};

    use tempfile::TempDir;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Vec<Layer> {
        layers_of(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    fn paths(variables: &[(&str, &str)]) -> Vec<PathBuf> {
        of(variables).into_iter().map(|layer| layer.path).collect()
    }

    #[test]
    fn the_user_comes_between_the_folder_and_the_machine() {
        let expected = ["weir.toml", "/home/ada/.config/weir/weir.toml", "/etc/weir/weir.toml"].map(PathBuf::from);
        assert_eq!(paths(&[("HOME", "/home/ada")]), expected);
        assert_eq!(paths(&[("HOME", "/home/ada"), ("XDG_CONFIG_HOME", "/x")])[1], Path::new("/x/weir/weir.toml"));
    }

    #[test]
    fn relative_folders_of_the_environment_do_not_count() {
        assert_eq!(paths(&[("HOME", "home"), ("XDG_CONFIG_HOME", "x")]).len(), 2);
    }

    #[test]
    fn the_variable_stands_alone_and_an_empty_one_is_unset() {
        assert_eq!(paths(&[("WEIR_CONFIG", "mine.toml"), ("HOME", "/home/ada")]), [Path::new("mine.toml")]);
        assert_eq!(paths(&[("WEIR_CONFIG", "")])[0], Path::new(DEFAULT_FILE));
    }

    #[test]
    fn the_first_file_that_exists_is_the_default() {
        let home = TempDir::new().unwrap();
        let file = home.path().join(".config/weir/weir.toml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        let variables = [("HOME", home.path().to_str().unwrap())];
        assert_eq!(first(of(&variables)), file);
        let missing = home.path().join("missing.toml");
        let variables = [variables[0], ("WEIR_CONFIG", missing.to_str().unwrap())];
        assert_eq!(first(of(&variables)), missing);
    }
}
