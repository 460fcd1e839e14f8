//! An etcd of Debian's package on loopback ports of its own, for one test.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A running etcd; ends with this value.
pub struct Etcd {
    program: PathBuf,
    folder: tempfile::TempDir,
    ports: (u16, u16),
    /// Flags about certificates; clients come by `https` then.
    secure: Vec<String>,
    child: Option<Child>,
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
        let mut etcd = Self { program, folder, ports: (free_port(), free_port()), secure, child: None };
        etcd.begin();
        Some(etcd)
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
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.ports.1));
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let child = Command::new(&self.program)
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--name", "a", "--initial-cluster", &format!("a={peer}")])
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
