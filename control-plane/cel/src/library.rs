//! The functions that expressions may call: CEL's own, its strings extension and Kubernetes' libraries.
//!
//! Upstream counterpart: `apiserver/pkg/cel/environment/base.go` and `apiserver/pkg/cel/library`. What the `cel` crate has is its; the
//! operators that must be metered or that must know borrowed JSON are replaced by functions whose names begin with `@`, which no text
//! can call: [`crate::compile::rewrite`] puts them in.

pub(crate) mod authz;
pub(crate) mod format;
pub(crate) mod lists;
pub(crate) mod net;
pub(crate) mod operators;
pub(crate) mod quantity;
pub(crate) mod regex;
pub(crate) mod semver;
pub(crate) mod sets;
pub(crate) mod strings;
pub(crate) mod url;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use cel::common::functions::Function;
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelString, DYN_TYPE, Type};
use cel::common::value::{CowVal, FromVal, Val};
use cel::{Env, ExecutionError, extensions};

/// Arguments of a call, the receiver first.
pub(crate) type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;
/// What a call gives.
pub(crate) type Out<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// How a function may be called: as a member, and with how many arguments besides the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub member: bool,
    pub arity: usize,
}

/// The environment and what the checker knows about it.
pub(crate) struct Library {
    env: Arc<Env>,
    shapes: BTreeMap<String, Vec<Shape>>,
}

/// CEL's own functions and the strings extension: name, arities as a global function, arities as a member.
const BUILT_IN: &[(&str, &[usize], &[usize])] = &[
    ("bool", &[1], &[]),
    ("bytes", &[1], &[]),
    ("charAt", &[], &[1]),
    ("contains", &[], &[1]),
    ("double", &[1], &[]),
    ("duration", &[1], &[]),
    ("dyn", &[1], &[]),
    ("endsWith", &[], &[1]),
    ("format", &[], &[1]),
    ("getDate", &[], &[0, 1]),
    ("getDayOfMonth", &[], &[0, 1]),
    ("getDayOfWeek", &[], &[0, 1]),
    ("getDayOfYear", &[], &[0, 1]),
    ("getFullYear", &[], &[0, 1]),
    ("getHours", &[], &[0, 1]),
    ("getMilliseconds", &[], &[0, 1]),
    ("getMinutes", &[], &[0, 1]),
    ("getMonth", &[], &[0, 1]),
    ("getSeconds", &[], &[0, 1]),
    ("hasValue", &[], &[0]),
    ("indexOf", &[], &[1, 2]),
    ("int", &[1], &[]),
    ("join", &[], &[0, 1]),
    ("lastIndexOf", &[], &[1, 2]),
    ("lowerAscii", &[], &[0]),
    ("matches", &[2], &[1]),
    ("optional.none", &[0], &[]),
    ("optional.of", &[1], &[]),
    ("optional.ofNonZeroValue", &[1], &[]),
    ("or", &[], &[1]),
    ("orValue", &[], &[1]),
    ("replace", &[], &[2, 3]),
    ("size", &[1], &[0]),
    ("split", &[], &[1, 2]),
    ("startsWith", &[], &[1]),
    ("string", &[1], &[]),
    ("strings.quote", &[1], &[]),
    ("substring", &[], &[1, 2]),
    ("timestamp", &[1], &[]),
    ("trim", &[], &[0]),
    ("type", &[1], &[]),
    ("uint", &[1], &[]),
    ("upperAscii", &[], &[0]),
    ("value", &[], &[0]),
];

/// Names of types: expressions may compare with them (`type(x) == int`).
pub(crate) const TYPE_NAMES: [&str; 18] = [
    "bool",
    "bytes",
    "double",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "timestamp",
    "duration",
    "type",
    "uint",
    "google",
    "kubernetes",
    "net",
    "optional",
];

static LIBRARY: LazyLock<Library> = LazyLock::new(build);

/// The one environment of all expressions.
pub(crate) fn env() -> &'static Arc<Env> {
    &LIBRARY.env
}

/// How the function may be called; nothing for an unknown one.
pub(crate) fn shapes(name: &str) -> Option<&'static [Shape]> {
    LIBRARY.shapes.get(name).map(Vec::as_slice)
}

fn build() -> Library {
    let mut env = Env::stdlib();
    extensions::strings(&mut env).expect("the strings extension is declared once");
    let mut registry = Registry { env, shapes: BTreeMap::new(), ids: 0 };
    for (name, global, member) in BUILT_IN {
        for arity in *global {
            registry.shape(name, false, *arity);
        }
        for arity in *member {
            registry.shape(name, true, *arity);
        }
    }
    operators::register(&mut registry);
    strings::register(&mut registry);
    lists::register(&mut registry);
    sets::register(&mut registry);
    regex::register(&mut registry);
    url::register(&mut registry);
    quantity::register(&mut registry);
    net::register(&mut registry);
    format::register(&mut registry);
    semver::register(&mut registry);
    authz::register(&mut registry);
    Library { env: Arc::new(registry.env), shapes: registry.shapes }
}

/// Declares functions.
pub(crate) struct Registry {
    env: Env,
    shapes: BTreeMap<String, Vec<Shape>>,
    ids: usize,
}

impl Registry {
    fn shape(&mut self, name: &str, member: bool, arity: usize) {
        self.shapes.entry(name.to_owned()).or_default().push(Shape { member, arity });
    }

    fn id(&mut self, name: &str) -> String {
        self.ids += 1;
        format!("{name}#{}", self.ids)
    }

    /// `name(types...)`.
    pub(crate) fn global(&mut self, name: &str, types: &[&Type], op: Function) {
        self.shape(name, false, types.len());
        self.hidden(name, types, op);
    }

    /// `receiver.name(types...)`.
    pub(crate) fn member(&mut self, name: &str, receiver: &Type, types: &[&Type], op: Function) {
        self.shape(name, true, types.len());
        let id = self.id(name);
        let types = types.iter().map(|t| (*t).to_owned()).collect();
        self.env.add_member_overload(name, &id, receiver.to_owned(), types, op).expect("an overload is declared once");
    }

    /// A function that only rewritten expressions call.
    pub(crate) fn hidden(&mut self, name: &str, types: &[&Type], op: Function) {
        let id = self.id(name);
        let types = types.iter().map(|t| (*t).to_owned()).collect();
        self.env.add_overload(name, &id, types, op).expect("an overload is declared once");
    }

    /// [`Self::hidden`] with `arity` arguments of any type.
    pub(crate) fn hidden_dyn(&mut self, name: &str, arity: usize, op: Function) {
        self.hidden(name, &vec![&DYN_TYPE; arity], op);
    }

    /// Lets expressions name a type.
    pub(crate) fn named_type(&mut self, named: &Type) {
        self.env.add_type(named.to_owned()).expect("a type is declared once");
    }
}

/// The argument as a built-in or Kubernetes value.
pub(crate) fn arg<'b, 'v, T: FromVal<'b, 'v>>(args: &'b [CowVal<'_, 'v>], at: usize) -> Result<&'b T, ExecutionError> {
    args.get(at).and_then(|value| value.as_ref().downcast_ref::<T>()).ok_or_else(|| {
        let types = args.iter().map(|value| value.get_type().name().to_owned()).collect();
        ExecutionError::no_such_overload("", types)
    })
}

/// The argument as text.
pub(crate) fn text<'b>(args: &'b [CowVal<'_, '_>], at: usize) -> Result<&'b str, ExecutionError> {
    arg::<CelString>(args, at).map(CelString::inner)
}

/// The argument as a whole number.
pub(crate) fn whole(args: &[CowVal<'_, '_>], at: usize) -> Result<i64, ExecutionError> {
    arg::<CelInt>(args, at).map(|value| *value.inner())
}

/// An error of a function, in upstream's words.
pub(crate) fn failed(message: impl std::fmt::Display) -> ExecutionError {
    ExecutionError::function_error("", message)
}

pub(crate) fn out_bool<'b, 'v>(value: bool) -> Out<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(value)))
}

pub(crate) fn out_int<'b, 'v>(value: i64) -> Out<'b, 'v> {
    Ok(CowVal::owned(CelInt::from(value)))
}

pub(crate) fn out_double<'b, 'v>(value: f64) -> Out<'b, 'v> {
    Ok(CowVal::owned(CelDouble::from(value)))
}

pub(crate) fn out_text<'b, 'v>(value: impl Into<String>) -> Out<'b, 'v> {
    Ok(CowVal::owned(CelString::from(value.into())))
}

pub(crate) fn text_list<'v>(items: impl IntoIterator<Item = String>) -> CelList<'v> {
    let items: Vec<Box<dyn Val + 'v>> =
        items.into_iter().map(|item| Box::new(CelString::from(item)) as Box<dyn Val + 'v>).collect();
    CelList::from(items)
}
