//! Kubernetes' own value types: a Rust value with a CEL type name, compared by its `PartialEq`.

/// Declares a value type: `opaque!(Name(Inner), TYPE, "kubernetes.Name")`.
macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident($inner:ty), $type:ident, $cel_name:literal) => {
        pub(crate) static $type: cel::common::types::Type =
            cel::common::types::Type::simple_type(cel::common::types::Kind::Opaque, $cel_name);

        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name(pub $inner);

        impl cel::common::value::Val for $name {
            fn get_type(&self) -> &cel::common::types::Type {
                &$type
            }
            fn cel_type() -> &'static cel::common::types::Type {
                &$type
            }
            fn equals(&self, other: &dyn cel::common::value::Val) -> bool {
                other.as_any().and_then(|other| other.downcast_ref::<Self>()).is_some_and(|other| self == other)
            }
            fn clone_as_boxed<'v>(&self) -> Box<dyn cel::common::value::Val + 'v> {
                Box::new(self.clone())
            }
            fn as_any(&self) -> Option<&dyn std::any::Any> {
                Some(self)
            }
        }

        impl cel::common::value::StaticVal for $name {}
    };
}

pub(crate) use opaque;
