//! The versions of one kind.

use serde_json::{Map, Value};

use crate::error::ConvertError;
use crate::schema::Type;

/// The types of one kind in all its versions, and how to get from one to another.
pub trait Versions<'a> {
    /// How types are told.
    type Type: Type<'a>;

    /// The type of whole objects in `apps/v1`; `None` if the kind is not served in that version: managers that wrote in it are
    /// forgotten.
    fn type_of(&self, api_version: &str) -> Option<Self::Type>;

    /// The object in another version. By default all versions have the same fields.
    ///
    /// # Errors
    /// When it cannot be said in that version.
    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, ConvertError> {
        let _ = api_version;
        Ok(object.clone())
    }

    /// What an object is before anything is set: the parts that are always there in upstream's Go type (`spec` of a Deployment, not
    /// `data` of a ConfigMap). Its fields are not owned by who creates an object.
    fn empty(&self) -> Value {
        Value::Object(Map::new())
    }
}

/// A kind with one type for all its versions.
#[derive(Clone, Copy, Debug)]
pub struct OneType<T>(pub T);

impl<'a, T: Type<'a>> Versions<'a> for OneType<T> {
    type Type = T;

    fn type_of(&self, _: &str) -> Option<T> {
        Some(self.0)
    }
}
