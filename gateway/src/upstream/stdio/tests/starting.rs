//! What a process is started with, and what is said when it cannot be started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-stdio-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn spawn_error(command: StdioCommand) -> StdioError {
    Process::spawn("peer", &command, permit(), crashes()).await.err().unwrap()
}

#[tokio::test]
async fn a_program_that_is_not_there() {
    let program = "weir-no-such-program";
    let error = spawn_error(command(program, &[])).await;
    assert_eq!(error, StdioError::NotFound(program.into()));
    let program = "/weir/no/such/program";
    let error = spawn_error(command(program, &[])).await;
    assert_eq!(error, StdioError::NotFound(program.into()));
}

#[tokio::test]
async fn a_program_that_may_not_run_or_lacks_its_interpreter() {
    let scratch = Scratch::new("refused");
    let program = scratch.file("plain.txt", "hello", 0o644);
    assert_eq!(spawn_error(command(&program, &[])).await, StdioError::NotExecutable(program));

    let program = scratch.file("orphaned.sh", "#!/weir/no/such/shell\n", 0o755);
    assert_eq!(spawn_error(command(&program, &[])).await, StdioError::NoInterpreter(program));

    let program = scratch.0.display().to_string();
    assert_eq!(spawn_error(command(&program, &[])).await, StdioError::NotExecutable(program));
}

#[tokio::test]
async fn a_directory_that_is_not_there() {
    let mut command = command("sh", &[]);
    command.cwd = Some("/weir/no/such/directory".into());
    let cwd = "/weir/no/such/directory".into();
    assert_eq!(spawn_error(command).await, StdioError::NoDirectory(cwd));
}

#[tokio::test]
async fn nothing_secret_is_printed() {
    let mut command = command("sh", &["--token=hush"]);
    command.env = vec![("TOKEN".into(), "hush\0".into())];
    assert!(!format!("{command:?}").contains("hush"));
    assert_eq!(spawn_error(command).await, StdioError::ZeroByte);
}

#[tokio::test]
async fn runs_where_it_should_with_what_was_set_and_no_more() {
    let scratch = Scratch::new("environment");
    let mut command = command(
        "sh",
        &[
            "-c",
            r#"
        read line
        names=$(env | sed 's/=.*//' | sort | tr '\n' ' ')
        printf '{"jsonrpc":"2.0","id":1,"result":["%s","%s","%s"]}\n' "$PWD" "$TOKEN" "$names"
        read line"#,
        ],
    );
    command.env = vec![("TOKEN".into(), "first".into()), ("TOKEN".into(), "second".into())];
    command.cwd = Some(scratch.0.clone());
    let process = start(&command).await;
    let result = result(&mut ask(&process, "x", &json!({})).await).await.unwrap();
    assert_eq!(result[0], json!(scratch.0.canonicalize().unwrap()));
    assert_eq!(result[1], "second");
    // PWD, OLDPWD, SHLVL and _ are the shell's own.
    let allowed = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "TOKEN", "PWD", "OLDPWD", "SHLVL", "_"];
    for name in result[2].as_str().unwrap().split_whitespace() {
        assert!(allowed.contains(&name), "{name} was inherited");
    }
    stop(&process).await;
}
