//! Certificates of the node API: the serving certificate, and the CA that client certificates are
//! checked against. Files that change are read again without a restart.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use super::ServingNames;

/// Files are looked at for changes at most so often.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Life of a self-signed certificate (upstream's).
const SELF_SIGNED_DAYS: i64 = 365;
/// A self-signed certificate with less life left is made anew at start.
const RENEW_DAYS: i64 = 30;
const SECONDS_PER_DAY: i64 = 86_400;

/// Where certificate, key and client CA are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tlsCertFile`.
    pub certificate: PathBuf,
    /// `tlsPrivateKeyFile`.
    pub key: PathBuf,
    /// `authentication.x509.clientCAFile`; without it no client certificate is accepted.
    pub client_ca: Option<PathBuf>,
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, written or made.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The step.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A file that is not what it should be.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what should be there.
        problem: String,
    },
    /// Key generation failed.
    #[error("cannot make a serving certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// rustls refuses the combination.
    #[error("certificate and key cannot be used: {0}")]
    Config(#[from] rustls::Error),
}

fn file<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, TlsError> {
    result.map_err(|source| TlsError::File { action, path: path.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = file("read", path, fs::read(path))?;
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let bad = |problem: String| TlsError::Content { path: path.to_owned(), problem };
    let list = list.map_err(|e| bad(format!("not a PEM certificate file: {e}")))?;
    if list.is_empty() {
        return Err(bad("no certificate in it (expected PEM \"CERTIFICATE\" blocks)".into()));
    }
    Ok(list)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = file("read", path, fs::read(path))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|e| TlsError::Content {
        path: path.to_owned(),
        problem: format!("no usable private key in it (expected PEM): {e}"),
    })
}

/// The serving certificate of the folder (`kubelet.crt`, `kubelet.key`, upstream's names), made
/// self-signed if it is missing, unreadable, nearly over, or not for this node.
///
/// # Errors
/// [`TlsError`].
pub fn ensure_serving_certificate(names: &ServingNames) -> Result<(PathBuf, PathBuf), TlsError> {
    let certificate = names.cert_dir.join("kubelet.crt");
    let key = names.cert_dir.join("kubelet.key");
    if usable(&certificate, &key, names) {
        return Ok((certificate, key));
    }
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&names.cert_dir);
    file("make the folder", &names.cert_dir, made)?;
    let pair = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(vec![names.node_name.clone()])?;
    let addresses = names.addresses.iter().copied().map(SanType::IpAddress);
    parameters.subject_alt_names.extend(addresses);
    let now = jiff::Timestamp::now().as_second();
    let name = format!("{}@{now}", names.node_name);
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.not_before =
        SystemTime::now().checked_sub(Duration::from_secs(3600)).unwrap_or(SystemTime::UNIX_EPOCH).into();
    let life = Duration::from_secs((SELF_SIGNED_DAYS * SECONDS_PER_DAY).unsigned_abs());
    parameters.not_after = (SystemTime::now() + life).into();
    let made = parameters.self_signed(&pair)?;
    // The key first: a certificate without its key would be taken for whole after a crash.
    write_private(&key, &pair.serialize_pem())?;
    write_private(&certificate, &made.pem())?;
    Ok((certificate, key))
}

/// Writes through a new file and a rename, readable by root only from the start.
fn write_private(path: &Path, text: &str) -> Result<(), TlsError> {
    let fresh = path.with_extension("new");
    let write = || -> io::Result<()> {
        let _ = fs::remove_file(&fresh);
        let mut options = fs::OpenOptions::new();
        let mut out = options.write(true).create_new(true).mode(0o600).open(&fresh)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::rename(&fresh, path)
    };
    file("write", path, write())
}

fn usable(certificate: &Path, key: &Path, names: &ServingNames) -> bool {
    let Ok(chain) = certificates(certificate) else {
        return false;
    };
    let Ok(key) = private_key(key) else {
        return false;
    };
    let Ok((_, leaf)) = x509_parser::parse_x509_certificate(&chain[0]) else {
        return false;
    };
    let left = leaf.validity().not_after.timestamp() - jiff::Timestamp::now().as_second();
    left > RENEW_DAYS * SECONDS_PER_DAY && covers(&leaf, names) && server_config(chain.clone(), key, None).is_ok()
}

fn covers(leaf: &x509_parser::certificate::X509Certificate<'_>, names: &ServingNames) -> bool {
    use x509_parser::extensions::GeneralName;
    let Ok(Some(alternative)) = leaf.subject_alternative_name() else {
        return false;
    };
    let has = |wanted: &IpAddr| {
        alternative.value.general_names.iter().any(|name| match name {
            GeneralName::IPAddress(bytes) => match wanted {
                IpAddr::V4(ip) => ip.octets() == **bytes,
                IpAddr::V6(ip) => ip.octets() == **bytes,
            },
            _ => false,
        })
    };
    let named = alternative
        .value
        .general_names
        .iter()
        .any(|name| matches!(name, GeneralName::DNSName(dns) if *dns == names.node_name));
    named && names.addresses.iter().all(has)
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: Option<(&Path, Vec<CertificateDer<'static>>)>,
) -> Result<rustls::ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some((path, list)) => {
            let bad = |problem: String| TlsError::Content { path: path.to_owned(), problem };
            let mut roots = RootCertStore::empty();
            for certificate in list {
                let added = roots.add(certificate);
                added.map_err(|e| bad(format!("a certificate cannot be used as CA: {e}")))?;
            }
            // Without a certificate a client may still have a token.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| bad(format!("cannot be used as client CA: {e}")))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

type Stamp = Vec<Option<(SystemTime, u64)>>;

struct Loaded {
    config: Arc<rustls::ServerConfig>,
    stamp: Stamp,
    looked: Instant,
}

/// A configuration that follows its files. A change that cannot be used is logged and the old one
/// stays.
pub(super) struct Reloading {
    files: TlsFiles,
    loaded: Mutex<Loaded>,
}

impl Reloading {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let stamp = stamp(&files);
        let config = Arc::new(load(&files)?);
        let loaded = Mutex::new(Loaded { config, stamp, looked: Instant::now() });
        Ok(Self { files, loaded })
    }

    /// The configuration for the next connection.
    pub fn config(&self) -> Arc<rustls::ServerConfig> {
        let mut loaded = self.loaded.lock();
        if loaded.looked.elapsed() >= LOOK_AGAIN {
            loaded.looked = Instant::now();
            let fresh = stamp(&self.files);
            if fresh != loaded.stamp {
                loaded.stamp = fresh;
                match load(&self.files) {
                    Ok(config) => loaded.config = Arc::new(config),
                    Err(error) => {
                        tracing::warn!(%error, "changed certificates cannot be used, keeping the old ones");
                    }
                }
            }
        }
        Arc::clone(&loaded.config)
    }
}

fn load(files: &TlsFiles) -> Result<rustls::ServerConfig, TlsError> {
    let client_ca = match &files.client_ca {
        Some(path) => Some((path.as_path(), certificates(path)?)),
        None => None,
    };
    let chain = certificates(&files.certificate)?;
    server_config(chain, private_key(&files.key)?, client_ca)
}

fn stamp(files: &TlsFiles) -> Stamp {
    [Some(&files.certificate), Some(&files.key), files.client_ca.as_ref()]
        .into_iter()
        .flatten()
        .map(|path| {
            let meta = fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn self_signed_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let mut names = ServingNames {
            node_name: "n1".into(),
            addresses: vec!["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            cert_dir: dir.path().join("pki"),
        };
        let (certificate, key) = ensure_serving_certificate(&names).unwrap();
        for path in [&certificate, &key] {
            let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", path.display());
        }
        let first = fs::read(&certificate).unwrap();
        ensure_serving_certificate(&names).unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), first, "kept");
        names.addresses.push("192.0.2.2".parse().unwrap());
        ensure_serving_certificate(&names).unwrap();
        assert_ne!(fs::read(&certificate).unwrap(), first, "another address");
        fs::write(&key, "garbage").unwrap();
        ensure_serving_certificate(&names).unwrap();
        assert!(load(&TlsFiles { certificate, key, client_ca: None }).is_ok());
    }

    #[test]
    fn bad_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.crt");
        assert!(certificates(&path).unwrap_err().to_string().contains("x.crt"));
        fs::write(&path, "nothing").unwrap();
        let error = certificates(&path).unwrap_err().to_string();
        assert!(error.contains("x.crt") && error.contains("CERTIFICATE"), "{error}");
    }
}
