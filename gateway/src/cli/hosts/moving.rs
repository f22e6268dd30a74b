//! `weir client connect --move`: the servers of a host's own file become Weir's, and come back with `disconnect`.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use weir_hosts::{Host, HostFile, MovedServer, Scope, Server, is_rewritten, read, rewrite_rules, whole_server_rule};

use super::{HostsOptions, MoveOptions, beside, directories, entry, replace, text_of};
use crate::cli::{servers::Intake, terminal};

/// Moves the servers of a host's file into the configuration, and points the host at Weir.
pub(super) fn connect(
    host: Host,
    path: &Path,
    options: &HostsOptions,
    moving: &MoveOptions,
) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    let Some(before) = text_of(path)? else { return super::connect(host, path, options) };
    let copy = copy_of(path);
    if copy.exists() && !options.dry_run {
        let name = host.name();
        bail!("{} is there from a move before; run `weir client disconnect {name}`, or delete it", copy.display());
    }
    let entry = entry(host, &options.options)?;
    let mut intake = Intake::open(&options.options.config, moving.trust)?;
    let (rest, moved) = taken(host, &before, options, &mut intake)?;
    if moved.is_empty() {
        terminal::say(format_args!("{}: there is nothing to move", host.name()))?;
        return super::connect(host, path, options);
    }
    let after = weir_hosts::connect(host, Some(&rest), &entry)?;
    if options.dry_run {
        terminal::say(format_args!("{shown} would be:\n{}", after.trim_end()))?;
        return Ok(None);
    }
    let question = format!("Move {} from {shown} to {}? [y/N] ", listed(&moved), options.options.config.display());
    if !moving.yes && !terminal::asks(&question, false)? {
        bail!("nothing was written; --yes writes it");
    }
    intake.save()?;
    fs::copy(path, &copy).with_context(|| copy.display().to_string())?;
    replace(path, Some(&before), &after)?;
    let rules = rewrite(host, options, &moved)?;
    let rules =
        if rules == 0 { String::new() } else { format!(", and {rules} permission rules name them as Weir does") };
    Ok(Some(format!("moved {}{rules}; what was in {shown} is in {}", listed(&moved), copy.display())))
}

/// The file without the servers that Weir takes, and these.
fn taken(
    host: Host,
    before: &str,
    options: &HostsOptions,
    intake: &mut Intake<'_>,
) -> anyhow::Result<(String, Vec<MovedServer>)> {
    let (own, files) = (&*options.options.name, permission_files(host, options)?);
    let (mut rest, mut moved) = (before.to_owned(), Vec::new());
    for server in own_servers(host, before)?.into_iter().filter(|server| server.name != own) {
        let without = match weir_hosts::disconnect(host, &rest, &server.name) {
            Ok(Some(without)) => without,
            Ok(None) => continue,
            Err(why) => {
                terminal::complain(format_args!("  {}: it stays where it is: {why}", server.name));
                continue;
            }
        };
        if let Some((file, rule)) = blocking_rule(&files, &server.name, own)? {
            terminal::complain(format_args!(
                "  {}: it stays where it is: `{rule}` in {} is for more than one tool, which {} cannot say of a server behind \
                 Weir; name the tools in single rules, or move the server with `weir import`",
                server.name,
                file.display(),
                host.title()
            ));
            continue;
        }
        if let Some(name) = intake.take(&server)? {
            rest = without;
            moved.push(MovedServer { from: server.name, to: name.to_string() });
        }
    }
    Ok((rest, moved))
}

/// A permission rule that would lose its effect if this server were behind Weir, and its file.
fn blocking_rule<'f>(files: &'f [HostFile], server: &str, own: &str) -> anyhow::Result<Option<(&'f Path, String)>> {
    for HostFile { path, .. } in files {
        let Some(text) = text_of(path)? else { continue };
        let rule = whole_server_rule(&text, own, server).map_err(|why| anyhow::anyhow!("{}:{why}", path.display()))?;
        if let Some(rule) = rule {
            return Ok(Some((path, rule)));
        }
    }
    Ok(None)
}

/// The servers of a file that are for all projects.
fn own_servers(host: Host, text: &str) -> anyhow::Result<Vec<Server>> {
    let all = read(host, text)?.servers;
    Ok(all.into_iter().filter(|server| server.project.is_none()).collect())
}

/// Where that is kept which was in a file before a move.
fn copy_of(path: &Path) -> PathBuf {
    beside(path, ".before-move")
}

/// What a file was before a move, if nobody has changed it since. `text` is the file without Weir's entry, called `own`.
pub(super) fn restored(host: Host, path: &Path, text: &str, own: &str) -> anyhow::Result<Option<String>> {
    let copy = copy_of(path);
    let Some(before) = text_of(&copy)? else { return Ok(None) };
    let without_own = |text: &str| -> anyhow::Result<String> {
        Ok(weir_hosts::disconnect(host, text, own)?.unwrap_or_else(|| text.to_owned()))
    };
    let here: HashSet<String> = own_servers(host, text)?.into_iter().map(|server| server.name).collect();
    let mut rest = before.clone();
    for server in own_servers(host, &before)?.iter().filter(|server| !here.contains(&server.name)) {
        rest = weir_hosts::disconnect(host, &rest, &server.name)?.unwrap_or(rest);
    }
    if without_own(&rest)? == text {
        return without_own(&before).map(Some);
    }
    terminal::complain(format_args!(
        "{}: {} has changed since its servers were moved, so they stay in Weir; what was there is in {}",
        host.name(),
        path.display(),
        copy.display()
    ));
    Ok(None)
}

/// Rewrites the rules of the user's permission files. How many rules that were. A project shares its own file with others
/// who may not use Weir, so what to write there is only said.
fn rewrite(host: Host, options: &HostsOptions, moved: &[MovedServer]) -> anyhow::Result<usize> {
    let mut rules = 0;
    for HostFile { path, scope } in permission_files(host, options)? {
        let Some(before) = text_of(&path)? else { continue };
        let edit = match rewrite_rules(&before, &options.options.name, moved) {
            Ok(edit) if !edit.rules.is_empty() => edit,
            Ok(_) => continue,
            Err(why) => {
                terminal::complain(format_args!("{}:{why}; its rules stay as they are", path.display()));
                continue;
            }
        };
        if scope == Scope::Project && !options.project {
            for (old, new) in &edit.rules {
                terminal::complain(format_args!("{}: {old} should be {new} now", path.display()));
            }
            continue;
        }
        let copy = copy_of(&path);
        fs::copy(&path, &copy).with_context(|| copy.display().to_string())?;
        replace(&path, Some(&before), &edit.text)?;
        for (old, new) in &edit.rules {
            terminal::say(format_args!("{}: {old} is {new} now", path.display()))?;
        }
        rules += edit.rules.len();
    }
    Ok(rules)
}

/// Forgets the copy of a file that is as before, and gives permission files back, if nobody has changed them since.
pub(super) fn finish(host: Host, path: &Path, options: &HostsOptions) -> anyhow::Result<()> {
    let copy = copy_of(path);
    fs::remove_file(&copy).with_context(|| copy.display().to_string())?;
    for HostFile { path, .. } in permission_files(host, options)? {
        let copy = copy_of(&path);
        let (Some(now), Some(before)) = (text_of(&path)?, text_of(&copy)?) else { continue };
        if is_rewritten(&now, &before, &options.options.name) {
            replace(&path, Some(&now), &before)?;
            fs::remove_file(&copy).with_context(|| copy.display().to_string())?;
        } else {
            terminal::complain(format_args!(
                "{} has changed since its rules were rewritten, so they stay; what was there is in {}",
                path.display(),
                copy.display()
            ));
        }
    }
    Ok(())
}

/// The files with rules about the servers that move: those of a project's are only for this folder, those of the user's
/// are also for the other projects that the host knows.
fn permission_files(host: Host, options: &HostsOptions) -> anyhow::Result<Vec<HostFile>> {
    let mut directories = directories()?;
    let mut files = host.permission_files(&directories);
    let own = host.files(&directories).into_iter().find(|file| file.scope == Scope::User && !options.project);
    let known = own.map(|file| text_of(&file.path)).transpose()?.flatten().unwrap_or_default();
    for project in host.projects(&known) {
        directories.project = Some(project);
        let others = host.permission_files(&directories);
        let others: Vec<HostFile> =
            others.into_iter().filter(|file| file.path.is_file() && !files.contains(file)).collect();
        files.extend(others);
    }
    Ok(files)
}

fn listed(moved: &[MovedServer]) -> String {
    moved.iter().map(|server| format!("`{}`", server.from)).collect::<Vec<_>>().join(", ")
}
