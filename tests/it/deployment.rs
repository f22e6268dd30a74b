//! What runs Weir: a service manager, and the files that tell one how.

use std::{fs, os::unix::net::UnixDatagram, path::PathBuf, process::Command, time::Duration};

use rustix::process::Signal;
use tokio::net::TcpStream;
use weir_tests::{Gateway, Stub, wait::PATIENCE};

/// A socket as systemd has one for a unit of `Type=notify`.
struct ServiceManager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl ServiceManager {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { folder, socket }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").to_str().unwrap().to_owned()
    }

    /// The next message.
    async fn hears(&self) -> String {
        let socket = self.socket.try_clone().unwrap();
        let hear = move || {
            let mut message = [0; 512];
            let length = socket.recv(&mut message).expect("the service manager is told something");
            String::from_utf8_lossy(&message[..length]).into_owned()
        };
        tokio::task::spawn_blocking(hear).await.unwrap()
    }
}

#[tokio::test]
async fn the_service_manager_is_told_when_weir_listens_reloads_and_stops() {
    let stub = Stub::start().await;
    let manager = ServiceManager::start();
    let mut gateway = Gateway::start_with(&stub.config("stub"), &[("NOTIFY_SOCKET", &manager.path())]).await;
    let ready = format!("READY=1\nMAINPID={}\n", gateway.id());
    let message = manager.hears().await;
    assert!(message.starts_with(&ready), "{message}");
    assert!(TcpStream::connect(gateway.address()).await.is_ok(), "it listens when it says so");

    gateway.signal(Signal::HUP);
    let message = manager.hears().await;
    assert!(message.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{message}");
    assert!(manager.hears().await.starts_with(&ready));

    gateway.signal(Signal::TERM);
    assert!(manager.hears().await.starts_with("STOPPING=1\n"));
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_gateway_that_cannot_start_is_never_ready() {
    let manager = ServiceManager::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    fs::write(&file, "listen = 7\n").unwrap();
    let ended = Command::new(weir_tests::paths::weir())
        .args(["serve", "--config"])
        .arg(&file)
        .env("NOTIFY_SOCKET", manager.path())
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(64));
    manager.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(manager.socket.recv(&mut [0; 64]).is_err(), "nothing was said");
}

/// A file of the repository.
fn config(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config").join(path)
}

/// What a tool says; none, and a loud word, where this machine has no such tool.
fn tool(program: &str, args: &[&str]) -> Option<(bool, String)> {
    match Command::new(program).args(args).output() {
        Ok(ended) => {
            let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
            Some((ended.status.success(), said))
        }
        Err(why) => {
            eprintln!("NOT CHECKED: `{program} {}`: {why}", args.join(" "));
            None
        }
    }
}

#[test]
fn systemd_takes_the_unit_and_finds_it_confined() {
    let unit = fs::read_to_string(config("systemd/weir.service")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // `verify` wants the program to be there.
    let file = folder.path().join("weir.service");
    fs::write(&file, unit.replace("/usr/bin/weir", "/bin/true")).unwrap();
    let file = file.to_str().unwrap();
    if let Some((is_good, said)) = tool("systemd-analyze", &["verify", file]) {
        assert!(is_good && !said.contains("weir.service:"), "{said}");
    }
    if let Some((is_good, said)) = tool("systemd-analyze", &["security", "--offline=true", "--threshold=25", file]) {
        assert!(is_good, "{said}");
    }
}

#[test]
fn helm_renders_a_pod_that_is_confined() {
    let chart = config("helm/weir");
    let values = config("helm/weir/ci/values.yaml");
    let (chart, values) = (chart.to_str().unwrap(), values.to_str().unwrap());
    if let Some((is_good, said)) = tool("helm", &["lint", "--strict", chart, "-f", values]) {
        assert!(is_good, "{said}");
    }
    // Helm without a cluster takes one for granted that may be older than the chart wants.
    let cluster = "--kube-version=1.30.0";
    let Some((is_good, rendered)) = tool("helm", &["template", "team", chart, cluster, "-f", values]) else { return };
    assert!(is_good, "{rendered}");
    for line in [
        "readOnlyRootFilesystem: true",
        "runAsNonRoot: true",
        "allowPrivilegeEscalation: false",
        "drop: [ALL]",
        "type: Recreate",
        "secretName: weir-secrets",
        "kind: NetworkPolicy",
        "kind: ServiceMonitor",
        "release: prometheus",
        "key: admin-token",
        "containerPort: 9464",
    ] {
        assert!(rendered.contains(line), "no {line} in\n{rendered}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendered.yaml");
    // A schema of the Prometheus operator is in no validator.
    let known = rendered.split("\n---\n").filter(|part| !part.contains("kind: ServiceMonitor"));
    fs::write(&file, known.collect::<Vec<_>>().join("\n---\n")).unwrap();
    if let Some((is_good, said)) = tool("kubernetes-validate", &["--strict", file.to_str().unwrap()]) {
        assert!(is_good, "{said}");
    }
    let render = |more: &[&str]| {
        tool("helm", &[&["template", "team", chart, cluster, "-f", values][..], more].concat()).unwrap()
    };
    let (is_good, said) = render(&["--set", "replicas=2"]);
    assert!(!is_good && said.contains("several replicas share a store"), "{said}");
    let (is_good, several) = render(&["--set", "replicas=3,persistence.enabled=false"]);
    assert!(is_good && several.contains("replicas: 3") && several.contains("kind: PodDisruptionBudget"), "{several}");
    let (is_good, scaled) = render(&["--set", "autoscaling.enabled=true,persistence.enabled=false"]);
    assert!(is_good && scaled.contains("kind: HorizontalPodAutoscaler") && !scaled.contains("replicas: 1"), "{scaled}");
    let (is_good, scaled) = render(&[
        "--set",
        "autoscaling.enabled=true,persistence.enabled=false,autoscaling.targetCPUUtilizationPercentage=0",
        "--set-string",
        "autoscaling.podMetrics.weir_calls_running=64",
    ]);
    let pods = "    - type: Pods\n      pods:\n        metric:\n          name: weir_calls_running\n";
    assert!(is_good && scaled.contains(pods) && scaled.contains("averageValue: \"64\""), "{scaled}");
    assert!(!scaled.contains("type: Resource\n"), "{scaled}");
    let (is_good, said) = tool("helm", &["template", "team", chart, cluster]).unwrap();
    assert!(!is_good && said.contains("the text of weir.toml is needed"), "{said}");
}

/// Children that do not end, the collector and the last records of the audit log may take 35 seconds after the drain.
#[test]
fn nobody_who_stops_weir_kills_it_before_its_drain_is_over() {
    let seconds = |file: &str, key: &str| {
        let text = fs::read_to_string(config(file)).unwrap();
        let mut values = text.lines().filter_map(|line| line.trim().strip_prefix(key)?.split('#').next());
        let value = values.next().unwrap_or_else(|| panic!("{file} has no {key}"));
        let digits = value.trim().trim_matches('"').trim_end_matches('s');
        digits.parse::<u32>().unwrap_or_else(|why| panic!("{file}: {value}: {why}"))
    };
    let drain = seconds("full.toml", "drain = ");
    for (file, key) in [
        ("systemd/weir.service", "TimeoutStopSec="),
        ("helm/weir/values.yaml", "terminationGracePeriodSeconds: "),
        ("compose.yaml", "stop_grace_period: "),
    ] {
        let limit = seconds(file, key);
        assert!(limit >= drain + 35, "{file}: {limit} s, and the drain alone takes {drain} s");
    }
}

/// The file of Compose, the configuration of its gateways and those of its balancers fit each other.
#[test]
fn compose_has_two_gateways_a_store_and_balancers_that_find_each_other() {
    let file = config("compose.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let mounted = text.lines().filter_map(|line| line.split_once("[\"./")?.1.split_once(':')).map(|(name, _)| name);
    let mounted: Vec<&str> = mounted.collect();
    assert_eq!(mounted, ["replicas.toml", "nginx.conf", "Caddyfile", "haproxy.cfg"]);
    for name in &mounted {
        let own = fs::read_to_string(config(name)).unwrap();
        match *name {
            "replicas.toml" => {
                let store =
                    own.lines().find_map(|line| line.strip_prefix("url = \"valkey://")?.strip_suffix(":6379\""));
                assert!(text.contains(&format!("\n  {}:\n", store.expect("the store has a name"))), "{own}");
                for variable in ["WEIR_STORE_KEY", "REPLICA_ADDRESS"] {
                    assert!(own.contains(variable) && text.matches(&format!("{variable}:")).count() >= 2, "{variable}");
                }
            }
            // Each balancer has the addresses that the gateways have here, and the port that is published.
            _ => {
                for address in ["10.0.0.1", "10.0.0.2"] {
                    assert!(own.contains(&format!("{address}:8080")), "{name}: {address}");
                    assert!(text.contains(&format!("ipv4_address: {address}")), "{address}");
                }
                assert!(own.contains("listen 8080") || own.contains(":8080"), "{name}");
            }
        }
    }
    let ended = Command::new(weir_tests::paths::weir())
        .args(["list", "--config"])
        .arg(config("replicas.toml"))
        .env("WEIR_STORE_KEY", weir_tests::terminal::KEY)
        .env("REPLICA_ADDRESS", "10.0.0.1")
        .output()
        .unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let known = [("docker", &["compose"][..]), ("docker-compose", &[])];
    let checked = known.into_iter().any(|(program, first)| {
        let mut command = Command::new(program);
        command.args(first).arg("-f").arg(&file).args(["--profile", "nginx", "config", "-q"]);
        let Ok(ended) = command.env("WEIR_STORE_KEY", "x").output() else { return false };
        let said = String::from_utf8_lossy(&ended.stderr);
        // A client without the plugin does not know the word.
        let has_plugin = !said.contains("unknown");
        assert!(ended.status.success() || !has_plugin, "{said}");
        has_plugin
    });
    if !checked {
        eprintln!("NOT CHECKED: `docker compose config`: there is no Compose on this machine");
    }
}

/// A copy of a folder makes the folder it is copied to, with the mode that folders usually have, and Weir takes no cache that
/// others may enter.
#[test]
fn the_image_keeps_the_modes_of_its_folders_and_nothing_hides_what_it_has_compiled() {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let dockerfile = read(config("../Dockerfile"));
    let copied: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY --from=build --chown=65532:65532 "))
        .map(|both| both.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(copied, ["/var/lib", "/var/cache"]);
    let compose = read(config("compose.yaml"));
    let hidden = compose.lines().filter(|line| line.trim_start().starts_with("tmpfs:") && line.contains("/var/cache"));
    assert_eq!(hidden.count(), 0, "{compose}");
    let chart = read(config("helm/weir/templates/deployment.yaml"));
    assert!(!chart.contains("mountPath: /var/cache/weir"), "the folder of a volume is open to others: {chart}");
}
