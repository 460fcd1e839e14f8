//! An etcd of Debian's package on loopback ports of its own, for one test.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where etcd is: `KEELSON_ETCD`, or where `./dev test` unpacks it. Tells by name what is skipped without it.
pub fn program(test: &str) -> Option<PathBuf> {
    let unpacked = || {
        let test = std::env::current_exe().ok()?;
        Some(test.ancestors().nth(3)?.join("lab/.etcd/usr/bin/etcd"))
    };
    let program = std::env::var_os("KEELSON_ETCD").map(PathBuf::from).or_else(unpacked);
    let found = program.filter(|path| path.is_file());
    if found.is_none() {
        // Not through `println`: the test runner would keep it to itself.
        let _ = writeln!(
            std::io::stdout(),
            "\nSKIPPED {test}: there is no etcd; KEELSON_ETCD names one, ./dev test unit unpacks Debian's etcd-server"
        );
    }
    found
}

/// A port below those that the kernel gives to connections: nobody takes it while etcd is away.
fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 12_000..30_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = std::process::id().wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(PORTS.start + next % (PORTS.end - PORTS.start)).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A running etcd; ends with this value.
pub struct Etcd {
    program: PathBuf,
    folder: tempfile::TempDir,
    ports: (u16, u16),
    /// Flags about certificates; clients come by `https` then.
    secure: Vec<String>,
    /// Its name, and all members of its cluster with their addresses among each other.
    member: (String, String),
    child: Option<Child>,
}

fn peer_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

impl Etcd {
    /// `None` where there is no etcd.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_secure(test, |_| Vec::new())
    }

    /// One that serves with certificates: `secure` makes them in a folder, and the flags that name them.
    pub fn start_secure(test: &str, secure: impl FnOnce(&Path) -> Vec<String>) -> Option<Self> {
        let program = program(test)?;
        let folder = tempfile::tempdir().unwrap();
        let secure = secure(folder.path());
        let ports = (free_port(), free_port());
        let member = ("a".to_owned(), format!("a={}", peer_url(ports.1)));
        let mut etcd = Self { program, folder, ports, secure, member, child: None };
        etcd.begin();
        Some(etcd)
    }

    /// Members of one cluster.
    pub fn cluster<const N: usize>(test: &str) -> Option<[Self; N]> {
        let program = program(test)?;
        let ports = [(); N].map(|()| (free_port(), free_port()));
        let names = std::array::from_fn::<_, N, _>(|i| format!("m{i}"));
        let all: Vec<_> =
            names.iter().zip(&ports).map(|(name, ports)| format!("{name}={}", peer_url(ports.1))).collect();
        let members = std::array::from_fn(|i| {
            let folder = tempfile::tempdir().unwrap();
            let member = (names[i].clone(), all.join(","));
            let mut etcd =
                Self { program: program.clone(), folder, ports: ports[i], secure: Vec::new(), member, child: None };
            etcd.begin();
            etcd
        });
        Some(members)
    }

    pub fn url(&self) -> String {
        let scheme = if self.secure.is_empty() { "http" } else { "https" };
        format!("{scheme}://127.0.0.1:{}", self.ports.0)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts it again on the same data.
    pub fn begin(&mut self) {
        let (client, peer) = (self.url(), peer_url(self.ports.1));
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let child = Command::new(&self.program)
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--name", &self.member.0, "--initial-cluster", &self.member.1])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--log-level", "warn"])
            .args(&self.secure)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", self.ports.0)).is_err() {
            assert!(Instant::now() < until, "etcd did not begin: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Stops it without an end, as a machine that hangs (`-STOP`), or lets it go on (`-CONT`).
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Kills it as a crash would (kill -9).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
