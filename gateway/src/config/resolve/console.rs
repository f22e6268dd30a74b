//! The image of the pages for browsers, which is read with the configuration.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::context::Context;
use crate::config::console::image_type;
use crate::config::read::At;
use crate::config::string::FilePath;
use crate::config::written::Root;
use crate::config::{ConsoleConfig, secret};

/// The largest image, in bytes: each page has it whole.
const LARGEST: usize = 32 * 1024;

pub(super) fn console(root: &Root, context: &mut Context<'_, '_>) -> ConsoleConfig {
    let Some(at) = root.console.set() else { return ConsoleConfig::default() };
    let name = at.value.name.set().map_or_else(|| ConsoleConfig::default().name, |at| at.value.0.clone());
    let logo = at.value.logo.set().and_then(|file| match logo(file, context) {
        Ok(logo) => Some(logo),
        Err(why) => {
            let hint = "a PNG, JPEG, WebP or SVG file of at most 32 KiB".to_owned();
            context.report.add(file.span.clone(), why, Some(hint));
            None
        }
    });
    ConsoleConfig { name, logo }
}

fn logo(file: &At<FilePath>, context: &Context<'_, '_>) -> Result<String, String> {
    let path = context.base.join(&file.value.0);
    let content = context.environment.file(&path);
    let content = content.map_err(|why| format!("{} cannot be read: {}", path.display(), secret::reason(&why)))?;
    if content.len() > LARGEST {
        return Err(format!("{} has {} bytes, which is too large", path.display(), content.len()));
    }
    let kind = image_type(&content).ok_or_else(|| format!("{} is no image that pages can show", path.display()))?;
    Ok(format!("data:{kind};base64,{}", BASE64_STANDARD.encode(&content)))
}
