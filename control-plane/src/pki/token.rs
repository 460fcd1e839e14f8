//! Service account tokens: JWTs signed with ES256, bound to a service account and perhaps to a pod, node or secret.
//!
//! Upstream counterpart: `pkg/serviceaccount/claims.go` and `jwt.go`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Issuer of all tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Longest token taken into account; real ones are about 1 KiB.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Signer and verifier.
#[derive(Debug)]
pub struct TokenKeys {
    pair: EcdsaKeyPair,
    key_id: String,
}

/// An object a token names by name and uid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    /// Name.
    pub name: String,
    /// Uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The `kubernetes.io` claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    /// Namespace of the service account.
    pub namespace: String,
    /// Node the bound pod runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref>,
    /// Pod the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Ref>,
    /// Secret the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Ref>,
    /// The service account.
    pub serviceaccount: Ref,
    /// When a client that does not re-read its token is to be warned, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// A token's claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Audiences.
    pub aud: Vec<String>,
    /// Expiry, Unix seconds.
    pub exp: i64,
    /// Issued at, Unix seconds.
    pub iat: i64,
    /// Issuer.
    pub iss: String,
    /// Unique id.
    pub jti: String,
    /// What it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    /// Not before, Unix seconds.
    pub nbf: i64,
    /// `system:serviceaccount:NAMESPACE:NAME`.
    pub sub: String,
}

/// Why a token is not accepted. Never retryable with the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not three parts of base64url JSON signed with ES256.
    #[error("the token is malformed")]
    Malformed,
    /// Another key signed it.
    #[error("the token's signature is not valid")]
    Signature,
    /// Another issuer made it.
    #[error("the token was made by another issuer")]
    Issuer,
    /// It has expired or is not valid yet.
    #[error("the token is expired or not valid yet")]
    Time,
}

impl TokenKeys {
    /// From a PKCS#8 PEM key.
    ///
    /// # Errors
    /// A message when the key is no P-256 key.
    pub fn from_pem(pem: &str) -> Result<Self, String> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| e.to_string())?;
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der(), &SystemRandom::new())
                .map_err(|e| e.to_string())?;
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(pair.public_key().as_ref()));
        Ok(Self { pair, key_id })
    }

    /// Signs claims; `None` when the system has no randomness.
    #[must_use]
    pub fn sign(&self, claims: &Claims) -> Option<String> {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let claims = serde_json::to_vec(claims).ok()?;
        let mut token = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.pair.sign(&SystemRandom::new(), token.as_bytes()).ok()?;
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature.as_ref()));
        Some(token)
    }

    /// Verifies signature, issuer and times at `now` (Unix seconds); what the token is bound to is the caller's to check.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(&self, token: &str, now: i64) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed);
        let header: Value = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if header["alg"] != "ES256" {
            return Err(TokenError::Malformed);
        }
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref());
        key.verify(signed.as_bytes(), &decode(signature)?).map_err(|_| TokenError::Signature)?;
        let claims: Claims = serde_json::from_slice(&decode(claims)?).map_err(|_| TokenError::Malformed)?;
        if claims.iss != ISSUER {
            return Err(TokenError::Issuer);
        }
        if now >= claims.exp || now < claims.nbf {
            return Err(TokenError::Time);
        }
        Ok(claims)
    }

    /// The key set document (`/openid/v1/jwks`).
    #[must_use]
    pub fn jwks(&self) -> Value {
        // Uncompressed point: 0x04, x, y.
        let point = self.pair.public_key().as_ref();
        let (x, y) = point.get(1..).unwrap_or_default().split_at(32);
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)}]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> TokenKeys {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        TokenKeys::from_pem(&key.serialize_pem()).unwrap()
    }

    fn claims() -> Claims {
        Claims {
            aud: vec![ISSUER.into()],
            exp: 2000,
            iat: 1000,
            iss: ISSUER.into(),
            jti: "j".into(),
            kubernetes: KubernetesClaims {
                namespace: "a".into(),
                node: None,
                pod: Some(Ref { name: "p".into(), uid: "u".into() }),
                secret: None,
                serviceaccount: Ref { name: "default".into(), uid: "s".into() },
                warnafter: None,
            },
            nbf: 1000,
            sub: "system:serviceaccount:a:default".into(),
        }
    }

    #[test]
    fn a_token_verifies_in_its_time_with_its_key() {
        let keys_a = keys();
        let token = keys_a.sign(&claims()).unwrap();
        assert_eq!(keys_a.verify(&token, 1500).unwrap(), claims());
        assert_eq!(keys_a.verify(&token, 2000), Err(TokenError::Time));
        assert_eq!(keys_a.verify(&token, 999), Err(TokenError::Time));
        assert_eq!(keys().verify(&token, 1500), Err(TokenError::Signature));
    }

    #[test]
    fn changed_claims_and_other_algorithms_are_refused() {
        let keys = keys();
        let token = keys.sign(&claims()).unwrap();
        let parts: Vec<&str> = token.split('.').collect();
        let mut forged = claims();
        forged.exp = 9_999_999;
        let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&forged).unwrap());
        assert_eq!(keys.verify(&format!("{}.{body}.{}", parts[0], parts[2]), 1500), Err(TokenError::Signature));
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert_eq!(keys.verify(&format!("{none}.{}.", parts[1]), 1500), Err(TokenError::Malformed));
        assert_eq!(keys.verify("", 1500), Err(TokenError::Malformed));
    }
}
