//! The cluster's certificate authority and what it signs, in `DIR/pki`, all keys ECDSA P-256.
//!
//! Made on first start, kept afterwards; a leaf that is about to expire or lacks a name is signed anew with its old key. Keys are
//! mode 0600, the folder 0700. Upstream counterpart: `kubeadm init phase certs`.

mod files;
mod kubeconfig;
pub mod token;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use files::write_private;
pub use kubeconfig::kubeconfig;

/// kubeadm's CA name.
const CA_COMMON_NAME: &str = "kubernetes";
/// kubeadm's CA lifetime: ten years.
const CA_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);
/// kubeadm's leaf lifetime: one year.
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// A leaf with less left than this is signed anew at start.
const RENEW_BEFORE: Duration = Duration::from_secs(60 * 86_400);
/// Clocks of nodes may be this far behind.
const BACKDATE: Duration = Duration::from_secs(300);

/// Why the PKI could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written. Retryable once the file is repaired.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file does not hold what its name says. Not retryable.
    #[error("{path} is not a usable {what}: {reason}; restore it, or delete it to have a new one made")]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Signing failed. Not retryable.
    #[error("cannot sign a certificate for {name}: {reason}")]
    Sign {
        /// Common name.
        name: String,
        /// What the signer said.
        reason: String,
    },
    /// The CA certificate exists without its key, or the other way round. Not retryable.
    #[error("{present} exists but {missing} does not; restore it, or delete both to start a new cluster")]
    HalfPair {
        /// The file that is there.
        present: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
}

/// Whom a client certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// User: the certificate's CN.
    pub user: String,
    /// Groups: the certificate's O, in order.
    pub groups: Vec<String>,
}

/// A certificate and its key as PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Certificate.
    pub cert_pem: String,
    /// PKCS#8 key.
    pub key_pem: String,
}

/// Names and addresses the serving certificate must carry.
#[derive(Debug, Clone, Default)]
pub struct ServingNames {
    /// DNS names.
    pub dns: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

/// The certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert_pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Everything in `DIR/pki`, ready for use.
#[derive(Debug)]
pub struct Pki {
    /// The folder.
    pub folder: PathBuf,
    /// The authority.
    pub authority: Authority,
    /// Serving certificate.
    pub serving: Pair,
    /// Client certificate for agents' port 10250.
    pub kubelet_client: Pair,
    /// The administrator's client certificate.
    pub admin: Pair,
    /// Signer and verifier of service account tokens.
    pub tokens: token::TokenKeys,
}

impl Pki {
    /// Reads the folder, making or renewing what is missing or expiring.
    ///
    /// # Errors
    /// [`PkiError`] naming the file.
    pub fn open(data_dir: &Path, names: &ServingNames) -> Result<Self, PkiError> {
        let folder = data_dir.join("pki");
        files::create_private_dir(&folder)?;
        let authority = Authority::open(&folder)?;
        let masters = vec!["system:masters".to_owned()];
        let serving_params = |cn: &str| serving_params(cn, names);
        let serving = authority.ensure(&folder, "apiserver", &serving_params("kube-apiserver"), names)?;
        let none = ServingNames::default();
        let client = |user: &str| client_params(&Subject { user: user.into(), groups: masters.clone() });
        let kubelet_client =
            authority.ensure(&folder, "apiserver-kubelet-client", &client("kube-apiserver-kubelet-client"), &none)?;
        let admin = authority.ensure(&folder, "admin", &client("kubernetes-admin"), &none)?;
        let sa = authority.ensure(&folder, "sa", &plain_params("service-accounts"), &none)?;
        let tokens = token::TokenKeys::from_pem(&sa.key_pem).map_err(|reason| PkiError::Content {
            path: folder.join("sa.key"),
            what: "ECDSA P-256 key",
            reason,
        })?;
        Ok(Self { folder, authority, serving, kubelet_client, admin, tokens })
    }
}

impl Authority {
    /// Reads or makes `ca.crt` and `ca.key`.
    ///
    /// # Errors
    /// [`PkiError`] naming the file.
    pub fn open(folder: &Path) -> Result<Self, PkiError> {
        let (cert_path, key_path) = (folder.join("ca.crt"), folder.join("ca.key"));
        match (cert_path.exists(), key_path.exists()) {
            (true, true) => {}
            (false, false) => make_ca(&cert_path, &key_path)?,
            (true, false) => return Err(PkiError::HalfPair { present: cert_path, missing: key_path }),
            (false, true) => return Err(PkiError::HalfPair { present: key_path, missing: cert_path }),
        }
        let cert_pem = files::read(&cert_path)?;
        let key = read_key(&key_path)?;
        let subject = subject_of(&cert_path, &cert_pem)?;
        if subject.user != CA_COMMON_NAME || !subject.groups.is_empty() {
            return Err(PkiError::Content {
                path: cert_path,
                what: "CA of this program",
                reason: format!("its subject is not CN={CA_COMMON_NAME}"),
            });
        }
        Ok(Self { issuer: Issuer::new(ca_params(), key), cert_pem })
    }

    /// The CA certificate.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Signs a client certificate with a fresh key.
    ///
    /// # Errors
    /// [`PkiError::Sign`].
    pub fn client(&self, subject: &Subject) -> Result<Pair, PkiError> {
        let key = new_key(&subject.user)?;
        self.sign(&client_params(subject), &key, &subject.user)
    }

    fn sign(&self, params: &CertificateParams, key: &KeyPair, name: &str) -> Result<Pair, PkiError> {
        let cert = params
            .signed_by(key, &self.issuer)
            .map_err(|e| PkiError::Sign { name: name.to_owned(), reason: e.to_string() })?;
        Ok(Pair { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }

    fn ensure(
        &self,
        folder: &Path,
        base: &str,
        params: &CertificateParams,
        names: &ServingNames,
    ) -> Result<Pair, PkiError> {
        let (cert_path, key_path) = (folder.join(format!("{base}.crt")), folder.join(format!("{base}.key")));
        let key = if key_path.exists() {
            read_key(&key_path)?
        } else {
            let key = new_key(base)?;
            write_private(&key_path, key.serialize_pem().as_bytes())?;
            key
        };
        if cert_path.exists() {
            let cert_pem = files::read(&cert_path)?;
            if still_good(&cert_path, &cert_pem, &key, names)? {
                return Ok(Pair { cert_pem, key_pem: key.serialize_pem() });
            }
        }
        let pair = self.sign(params, &key, base)?;
        files::write_public(&cert_path, pair.cert_pem.as_bytes())?;
        Ok(pair)
    }
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_COMMON_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, CA_LIFETIME);
    params
}

fn make_ca(cert_path: &Path, key_path: &Path) -> Result<(), PkiError> {
    let key = new_key(CA_COMMON_NAME)?;
    let cert = ca_params()
        .self_signed(&key)
        .map_err(|e| PkiError::Sign { name: CA_COMMON_NAME.to_owned(), reason: e.to_string() })?;
    write_private(key_path, key.serialize_pem().as_bytes())?;
    files::write_public(cert_path, cert.pem().as_bytes())
}

fn plain_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, LEAF_LIFETIME);
    params
}

fn client_params(subject: &Subject) -> CertificateParams {
    let mut params = plain_params(&subject.user);
    // One O per group; the name type keeps one value per kind, so further groups go in as custom types of the same OID.
    let mut name = DistinguishedName::new();
    for (index, group) in subject.groups.iter().enumerate() {
        let kind = if index == 0 { DnType::OrganizationName } else { DnType::CustomDnType(vec![2, 5, 4, 10]) };
        name.push(kind, group.as_str());
    }
    name.push(DnType::CommonName, subject.user.as_str());
    params.distinguished_name = name;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn serving_params(common_name: &str, names: &ServingNames) -> CertificateParams {
    let mut params = plain_params(common_name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let dns = names.dns.iter().filter_map(|n| n.as_str().try_into().ok()).map(SanType::DnsName);
    params.subject_alt_names = dns.chain(names.addresses.iter().copied().map(SanType::IpAddress)).collect();
    params
}

fn set_validity(params: &mut CertificateParams, lifetime: Duration) {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch.saturating_sub(BACKDATE);
    params.not_after = epoch + since_epoch + lifetime;
}

fn new_key(name: &str) -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
        .map_err(|e| PkiError::Sign { name: name.to_owned(), reason: e.to_string() })
}

fn read_key(path: &Path) -> Result<KeyPair, PkiError> {
    KeyPair::from_pem(&files::read(path)?).map_err(|e| PkiError::Content {
        path: path.to_owned(),
        what: "private key",
        reason: e.to_string(),
    })
}

fn still_good(path: &Path, pem: &str, key: &KeyPair, names: &ServingNames) -> Result<bool, PkiError> {
    use rcgen::PublicKeyData;
    let der = certificate_der(path, pem)?;
    let (_, cert) = x509_parser::parse_x509_certificate(&der).map_err(|e| PkiError::Content {
        path: path.to_owned(),
        what: "certificate",
        reason: e.to_string(),
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + RENEW_BEFORE;
    let lasts = u64::try_from(cert.validity().not_after.timestamp()).is_ok_and(|end| end > now.as_secs());
    let same_key = cert.public_key().subject_public_key.data.as_ref() == key.der_bytes();
    let sans = cert.subject_alternative_name().ok().flatten();
    let present: Vec<_> = sans.iter().flat_map(|s| s.value.general_names.iter()).collect();
    let has = |wanted: &x509_parser::extensions::GeneralName<'_>| present.contains(&wanted);
    let named = names.dns.iter().all(|n| has(&x509_parser::extensions::GeneralName::DNSName(n)))
        && names.addresses.iter().all(|a| match a {
            IpAddr::V4(a) => has(&x509_parser::extensions::GeneralName::IPAddress(&a.octets())),
            IpAddr::V6(a) => has(&x509_parser::extensions::GeneralName::IPAddress(&a.octets())),
        });
    Ok(lasts && same_key && named)
}

fn certificate_der(path: &Path, pem: &str) -> Result<CertificateDer<'static>, PkiError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| PkiError::Content {
        path: path.to_owned(),
        what: "certificate",
        reason: e.to_string(),
    })
}

fn subject_of(path: &Path, pem: &str) -> Result<Subject, PkiError> {
    let der = certificate_der(path, pem)?;
    subject(&der).ok_or_else(|| PkiError::Content {
        path: path.to_owned(),
        what: "certificate",
        reason: "it has no readable subject".to_owned(),
    })
}

/// Whom a certificate names; `None` when it cannot be read or has no CN.
#[must_use]
pub fn subject(certificate: &CertificateDer<'_>) -> Option<Subject> {
    let (_, cert) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let user = cert.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = cert.subject().iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    Some(Subject { user, groups })
}

/// Certificate chain and key of a pair, for rustls.
///
/// # Errors
/// What the PEM parser says.
pub fn rustls_pair(
    pair: &Pair,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rustls::pki_types::pem::Error> {
    let chain = CertificateDer::pem_slice_iter(pair.cert_pem.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes())?;
    Ok((chain, key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(extra: &[&str]) -> ServingNames {
        ServingNames {
            dns: extra.iter().map(|s| (*s).to_owned()).collect(),
            addresses: vec!["10.96.0.1".parse().unwrap(), "::1".parse().unwrap()],
        }
    }

    #[test]
    fn second_open_keeps_everything() {
        let folder = tempfile::tempdir().unwrap();
        let first = Pki::open(folder.path(), &names(&["localhost"])).unwrap();
        let second = Pki::open(folder.path(), &names(&["localhost"])).unwrap();
        assert_eq!(first.authority.cert_pem(), second.authority.cert_pem());
        assert_eq!(first.serving.cert_pem, second.serving.cert_pem);
        assert_eq!(first.admin.key_pem, second.admin.key_pem);
        for file in ["ca", "apiserver", "apiserver-kubelet-client", "admin", "sa"] {
            let path = first.folder.join(format!("{file}.key"));
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", path.display());
        }
    }

    #[test]
    fn a_new_name_renews_the_serving_certificate_only() {
        let folder = tempfile::tempdir().unwrap();
        let first = Pki::open(folder.path(), &names(&["localhost"])).unwrap();
        let second = Pki::open(folder.path(), &names(&["localhost", "other"])).unwrap();
        assert_ne!(first.serving.cert_pem, second.serving.cert_pem);
        assert_eq!(first.serving.key_pem, second.serving.key_pem);
        assert_eq!(first.admin.cert_pem, second.admin.cert_pem);
    }

    #[test]
    fn a_client_certificate_names_user_and_groups() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(folder.path(), &names(&[])).unwrap();
        let wanted = Subject { user: "system:node:a".into(), groups: vec!["system:nodes".into(), "second".into()] };
        let pair = pki.authority.client(&wanted).unwrap();
        let (chain, _) = rustls_pair(&pair).unwrap();
        assert_eq!(subject(&chain[0]).unwrap(), wanted);
    }

    #[test]
    fn half_a_ca_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        Pki::open(folder.path(), &names(&[])).unwrap();
        std::fs::remove_file(folder.path().join("pki/ca.key")).unwrap();
        assert!(matches!(Pki::open(folder.path(), &names(&[])), Err(PkiError::HalfPair { .. })));
    }
}
