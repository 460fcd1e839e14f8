//! Reads what a volume refers to and forms its payload.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Pod, SecretProjection, ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use super::error::VolumeCause;
use super::objects::{ConfigMapData, ObjectKey, ObjectKind, ObjectReader, SecretData, TokenParams};
use super::ownership::Ownership;
use super::payload::{
    DEFAULT_MODE, FileProjection, Payload, config_map_payload, downward_payload, mode_bits, normalise, secret_payload,
};
use super::tokens::{DEFAULT_EXPIRATION_SECONDS, PodTokens};
use crate::env::fields::NodeFacts;

/// Everything a volume's content depends on.
pub(super) struct Renderer<'a> {
    pub reader: &'a dyn ObjectReader,
    pub pod: &'a Pod,
    pub facts: &'a NodeFacts,
    pub tokens: &'a PodTokens,
    pub owner: Ownership,
}

/// Whether the content of `volume` depends on the object `key` of the pod's own namespace.
pub(super) fn refers_to(volume: &Volume, key: &ObjectKey) -> bool {
    let map = |name: &str| key.kind == ObjectKind::ConfigMap && name == &*key.name;
    let secret = |name: &str| key.kind == ObjectKind::Secret && name == &*key.name;
    if let Some(source) = &volume.config_map {
        return map(&source.name);
    }
    if let Some(source) = &volume.secret {
        return source.secret_name.as_deref().is_some_and(secret);
    }
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter());
    sources.flatten().any(|source| {
        source.config_map.as_ref().is_some_and(|s| map(&s.name))
            || source.secret.as_ref().is_some_and(|s| secret(&s.name))
    })
}

/// Whether `volume` holds a token.
pub(super) fn has_token(volume: &Volume) -> bool {
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter());
    sources.flatten().any(|s| s.service_account_token.is_some())
}

impl Renderer<'_> {
    /// The payload of a configMap, secret, downwardAPI or projected volume; `None` for others.
    pub async fn render(&self, volume: &Volume) -> Result<Option<Payload>, VolumeCause> {
        let mode = |mode: Option<i32>| mode.map_or(DEFAULT_MODE, mode_bits);
        let payload = if let Some(source) = &volume.config_map {
            let projection = ConfigMapProjection {
                items: source.items.clone(),
                name: source.name.clone(),
                optional: source.optional,
            };
            self.config_map(&projection, mode(source.default_mode)).await?
        } else if let Some(source) = &volume.secret {
            let projection = SecretProjection {
                items: source.items.clone(),
                name: source.secret_name.clone().unwrap_or_default(),
                optional: source.optional,
            };
            self.secret(&projection, mode(source.default_mode)).await?
        } else if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            downward_payload(items, self.pod, self.facts, mode(source.default_mode))?
        } else if let Some(source) = &volume.projected {
            let sources = source.sources.as_deref().unwrap_or_default();
            self.projected(sources, mode(source.default_mode)).await?
        } else {
            return Ok(None);
        };
        Ok(Some(normalise(payload)?))
    }

    /// All sources are tried, so that the user sees every mistake at once.
    async fn projected(&self, sources: &[VolumeProjection], mode: u32) -> Result<Payload, VolumeCause> {
        let mut payload = Payload::new();
        let mut causes = Vec::new();
        for source in sources {
            let part = if let Some(s) = &source.secret {
                self.secret(s, mode).await
            } else if let Some(s) = &source.config_map {
                self.config_map(s, mode).await
            } else if let Some(s) = &source.downward_api {
                let items = s.items.as_deref().unwrap_or_default();
                downward_payload(items, self.pod, self.facts, mode).map_err(Into::into)
            } else if let Some(s) = &source.service_account_token {
                self.token(s, mode).await
            } else {
                let kind = if source.cluster_trust_bundle.is_some() {
                    "projected.clusterTrustBundle"
                } else {
                    "projected.podCertificate"
                };
                Err(VolumeCause::Unsupported { kind })
            };
            match part {
                Ok(part) => payload.extend(part),
                Err(cause) => causes.push(cause),
            }
        }
        match VolumeCause::from_many(causes) {
            None => Ok(payload),
            Some(cause) => Err(cause),
        }
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    async fn config_map(&self, source: &ConfigMapProjection, mode: u32) -> Result<Payload, VolumeCause> {
        let optional = source.optional == Some(true);
        let items = source.items.as_deref();
        match self.reader.config_map(self.namespace(), &source.name).await {
            Ok(map) => Ok(config_map_payload(items, &map, mode, optional)?),
            Err(error) if optional && error.is_not_found() => {
                let empty = ConfigMapData::default();
                Ok(config_map_payload(items, &empty, mode, true)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn secret(&self, source: &SecretProjection, mode: u32) -> Result<Payload, VolumeCause> {
        let optional = source.optional == Some(true);
        let items = source.items.as_deref();
        match self.reader.secret(self.namespace(), &source.name).await {
            Ok(secret) => Ok(secret_payload(items, &secret, mode, optional)?),
            Err(error) if optional && error.is_not_found() => {
                Ok(secret_payload(items, &SecretData::default(), mode, true)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn token(&self, source: &ServiceAccountTokenProjection, mode: u32) -> Result<Payload, VolumeCause> {
        let meta = &self.pod.metadata;
        let spec = self.pod.spec.as_ref();
        let account = spec.and_then(|s| s.service_account_name.as_deref());
        let params = TokenParams {
            namespace: self.namespace().to_owned(),
            service_account: account.filter(|a| !a.is_empty()).unwrap_or("default").into(),
            audience: source.audience.clone().filter(|a| !a.is_empty()),
            expiration_seconds: source.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION_SECONDS),
            pod_name: meta.name.clone().unwrap_or_default(),
            pod_uid: meta.uid.clone().unwrap_or_default(),
        };
        let now = jiff::Timestamp::now();
        let token = self.tokens.get(self.reader, &params, now).await?;
        let (mode, uid) = self.owner.token(mode);
        let file = FileProjection { data: token.token.into(), mode, uid };
        Ok(Payload::from([(source.path.clone(), file)]))
    }
}
