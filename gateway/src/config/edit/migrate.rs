//! Older forms of the configuration, and how each becomes the present one. A form that Weir still reads stays here until it
//! is refused.

use std::{fs, path::PathBuf};

use toml_edit::{Item, Key, TableLike};

use super::{ConfigFile, EditError};

impl ConfigFile {
    /// Brings the file to the present form, and says what has changed.
    pub fn migrate(&mut self) -> Vec<String> {
        let upstreams = self.document.get_mut("upstreams").and_then(Item::as_table_like_mut);
        let Some(upstreams) = upstreams else { return Vec::new() };
        let changed = upstreams.iter_mut().filter_map(|(name, upstream)| {
            let upstream = upstream.as_table_like_mut()?;
            rename_http_url(upstream)
                .then(|| format!("upstream `{}`: `httpUrl` is `url` with `type = \"http\"`", name.get()))
        });
        changed.collect()
    }

    /// Copies what is on disk to a file beside it, and names that.
    ///
    /// # Errors
    /// When there is such a file already, or it cannot be written.
    pub fn back_up(&self) -> Result<PathBuf, EditError> {
        let mut backup = self.path.clone().into_os_string();
        backup.push(".bak");
        let backup = PathBuf::from(backup);
        let failed = |why| EditError::Io { path: backup.display().to_string(), why };
        // The copy has the rights of the file. Whatever has this name already is not replaced.
        match fs::File::create_new(&backup).and_then(|_| fs::copy(&self.path, &backup)) {
            Ok(_) => Ok(backup),
            Err(why) => Err(failed(why)),
        }
    }
}

/// What comes instead stands where the key stood, with its comments.
fn rename_http_url(upstream: &mut dyn TableLike) -> bool {
    if !upstream.contains_key("httpUrl") {
        return false;
    }
    // The older key won over this one.
    upstream.remove("url");
    let has_type = upstream.contains_key("type");
    let key = |name: &str| upstream.get_key_value(name).map(|(key, _)| key.clone());
    let keys: Vec<Key> = upstream.iter().filter_map(|(name, _)| key(name)).collect();
    for key in keys {
        let Some(item) = upstream.remove(key.get()) else { continue };
        if key.get() != "httpUrl" {
            upstream.entry_format(&key).or_insert(item);
            continue;
        }
        let url =
            Key::new("url").with_leaf_decor(key.leaf_decor().clone()).with_dotted_decor(key.dotted_decor().clone());
        upstream.entry_format(&url).or_insert(item);
        if !has_type {
            upstream.insert("type", Item::Value("http".into()));
        }
    }
    true
}
