//! Expressions: libraries, errors in upstream's words, bounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keelson_cel::{
    Authorizer, Check, CompileError, Decision, EvalError, Expect, Expression, MAX_DURATION, ResourceTarget, Target,
    Variables,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const NAMES: [&str; 4] = ["object", "oldObject", "authorizer", "authorizer.requestResource"];

fn object() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "tier": "front"}},
        "spec": {
            "replicas": 3,
            "ratio": 0.5,
            "empty": null,
            "containers": [{"name": "a", "image": "x:1", "ports": [80, 443]}, {"name": "b", "image": "y"}],
        },
    })
}

fn compile(text: &str) -> Expression {
    Expression::compile(text, &NAMES, Expect::Any).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn evaluate(text: &str) -> Result<Value, EvalError> {
    let object = object();
    compile(text).evaluate(&Variables::new().json("object", Some(&object)).json("oldObject", None))
}

#[track_caller]
fn all_true(texts: &[&str]) {
    for text in texts {
        assert_eq!(evaluate(text), Ok(Value::Bool(true)), "{text}");
    }
}

#[track_caller]
fn all_fail(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        let error = evaluate(text).expect_err(text);
        assert_eq!(error.to_string(), *expected, "{text}");
    }
}

#[test]
fn objects_are_read() {
    all_true(&[
        "object.spec.replicas == 3 && type(object.spec.replicas) == int",
        "object.spec.ratio < 1.0 && object.spec.ratio < 1",
        "object.metadata.labels['app'] == 'web' && 'tier' in object.metadata.labels",
        "has(object.spec.replicas) && !has(object.spec.missing) && !has(oldObject.spec)",
        "oldObject == null && object != null && object.spec.empty == null",
        "object.spec.containers.all(c, c.name in ['a', 'b'])",
        "object.spec.containers.exists(c, has(c.ports) && 443 in c.ports)",
        "object.spec.containers.exists_one(c, c.image.contains(':'))",
        "object.spec.containers.map(c, c.name) == ['a', 'b'] && ['a', 'b'] == object.spec.containers.map(c, c.name)",
        "object.spec.containers.filter(c, c.name == 'b').size() == 1",
        "object.spec.containers[0].ports == [80, 443] && [80, 443] == object.spec.containers[0].ports",
        "[[80, 443]] == [object.spec.containers[0].ports] && [80, 443] in [object.spec.containers[0].ports]",
        "{'app': 'web', 'tier': 'front'} == object.metadata.labels && object.metadata.labels == {'app': 'web', 'tier': 'front'}",
        "object.metadata.labels.all(k, k in ['app', 'tier']) && size(object.metadata.labels) == 2",
        "object == object && object.spec.containers + [1] == object.spec.containers + [1]",
        "object.?spec.?missing.orValue(7) == 7 && object.?spec.?replicas.orValue(7) == 3",
        "optional.of(object.spec).hasValue() && !optional.none().hasValue()",
        "object.spec.replicas > 5 ? false : true",
        "!(1 > 2) || object.missing.field == 1",
    ]);
}

#[test]
fn errors_are_upstreams() {
    all_fail(&[
        ("object.spec.missing > 1", "no such key: missing"),
        ("object.metadata.annotations['x'] == 'y'", "no such key: annotations"),
        ("oldObject.spec.replicas > 1", "no such key: spec"),
        ("object.spec.containers[5].name == 'x'", "index out of bounds: 5"),
        ("1 / (object.spec.replicas - 3) == 1", "division by zero"),
        ("object.spec.replicas + 'a' == 'b'", "no such overload"),
        (
            "quantity('x') == quantity('1')",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("quantity('50m').asInteger() == 1", "cannot convert value to integer"),
        ("[].min() == 1", "min called on empty list"),
    ]);
}

#[test]
fn texts_lists_and_regexes() {
    all_true(&[
        "'hello'.charAt(1) == 'e' && 'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3 && 'hello'.lastIndexOf('l') == 3",
        "'héllo'.indexOf('llo') == 2 && 'hello'.indexOf('z') == -1 && 'hello'.lastIndexOf('l', 2) == 2 && 'hello'.indexOf('') == 0",
        "'ABc'.lowerAscii() == 'abc' && 'ABc'.upperAscii() == 'ABC' && ' a '.trim() == 'a'",
        "'a-b-c'.replace('-', '+') == 'a+b+c' && 'a-b-c'.replace('-', '+', 1) == 'a+b-c'",
        "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('/') == 'a/b' && ['a', 'b'].join() == 'ab'",
        "'hello'.substring(1, 3) == 'el' && 'hello'.substring(3) == 'lo'",
        "'%s is %d'.format([object.metadata.name, object.spec.replicas]) == 'web is 3'",
        "[1, 2, 2, 5].isSorted() && ![2, 1].isSorted() && [1, 2, 3].sum() == 6 && [1.5, 2.5].sum() == 4.0",
        "[3, 1, 2].min() == 1 && [3, 1, 2].max() == 3 && object.spec.containers[0].ports.max() == 443",
        "[1, 2, 3, 2].indexOf(2) == 1 && [1, 2, 3, 2].lastIndexOf(2) == 3 && [1].indexOf(9) == -1",
        "'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]') == ['1', '2', '3'] && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
        "'web-1'.matches('^web-[0-9]$') && matches('web', 'w.b') && !'x'.matches('^y')",
        "sets.contains([1, 2, 3], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 1], [1]) && !sets.contains([1], [2])",
        "duration('1h').getMinutes() == 60 && timestamp('2020-01-01T00:00:00Z').getFullYear() == 2020",
    ]);
}

#[test]
fn kubernetes_libraries() {
    all_true(&[
        "isURL('https://user:pass@example.com:80/path?query=val') && !isURL('../relative') && isURL('/absolute')",
        "url('https://example.com:80/path with spaces/').getEscapedPath() == '/path%20with%20spaces/'",
        "url('https://example.com:80/').getHost() == 'example.com:80' && url('https://example.com:80/').getPort() == '80'",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]/').getPort() == ''",
        "url('https://e.com/p?k=v1&k=v2&l').getQuery() == {'k': ['v1', 'v2'], 'l': ['']} && url('/p').getScheme() == ''",
        "quantity('200M').isGreaterThan(quantity('50k')) && quantity('50M').isLessThan(quantity('1G'))",
        "quantity('50k').add(quantity('20k')) == quantity('70k') && quantity('50k').sub(20000) == quantity('30k')",
        "quantity('50k').asInteger() == 50000 && quantity('50.703').asApproximateFloat() == 50.703",
        "isQuantity('1.3G') && !isQuantity('200K') && quantity('-1').sign() == -1 && quantity('1').compareTo(quantity('1')) == 0",
        "ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && !isIP('127.0.0.256') && !isIP('::ffff:1.2.3.4')",
        "ip('224.0.0.1').isLinkLocalMulticast() && ip('fe80::1').isLinkLocalUnicast() && !ip('255.255.255.255').isGlobalUnicast()",
        "ip.isCanonical('2001:db8::abcd') && !ip.isCanonical('2001:DB8::ABCD') && string(ip('::1')) == '::1'",
        "cidr('192.168.0.0/24').containsIP('192.168.0.1') && !cidr('192.168.0.0/24').containsIP(ip('192.168.1.1'))",
        "cidr('192.168.0.0/16').containsCIDR('192.168.10.0/24') && cidr('192.168.0.1/24').masked() == cidr('192.168.0.0/24')",
        "cidr('::1/128').prefixLength() == 128 && cidr('192.168.0.1/24').ip() == ip('192.168.0.1') && !isCIDR('192.168.0.0/33')",
        "!format.dns1123Label().validate('my-name').hasValue() && format.dns1123Label().validate('My').hasValue()",
        "format.named('uuid').value().validate('x') == optional.of(['does not match the UUID format'])",
        "!format.dns1123LabelPrefix().validate('a-b-').hasValue() && !format.named('nothing').hasValue()",
        "semver('1.2.3').major() == 1 && semver('1.0.0').isLessThan(semver('1.0.1')) && semver('v1.0', true) == semver('1.0.0')",
        "isSemver('01.01.01', true) && !isSemver('v1.0') && semver('1.0.0-alpha').compareTo(semver('1.0.0')) == -1",
    ]);
}

#[derive(Debug)]
struct OnlyGet;

impl Authorizer for OnlyGet {
    fn authorize(&self, check: &Check) -> Decision {
        let allowed = match &check.target {
            Target::Path(path) => path == "/healthz",
            Target::Resource(target) => {
                target.resource == "pods" && target.namespace == "ns" && check.service_account.is_none()
            }
        };
        Decision { allowed: allowed && check.verb == "get", reason: format!("{} says so", check.verb), error: None }
    }
}

#[test]
fn authorization_is_asked() {
    let authorizer: Arc<dyn Authorizer> = Arc::new(OnlyGet);
    let request = ResourceTarget { resource: "pods".into(), namespace: "ns".into(), ..ResourceTarget::default() };
    let variables = Variables::new().authorizer(&authorizer, request);
    for (text, expected) in [
        ("authorizer.path('/healthz').check('get').allowed()", json!(true)),
        ("authorizer.path('/x').check('get').allowed()", json!(false)),
        ("authorizer.group('').resource('pods').namespace('ns').name('p').check('get').allowed()", json!(true)),
        ("authorizer.group('').resource('pods').namespace('ns').check('list').reason()", json!("list says so")),
        (
            "authorizer.serviceAccount('a', 'b').group('').resource('pods').namespace('ns').check('get').allowed()",
            json!(false),
        ),
        ("authorizer.requestResource.check('get').allowed()", json!(true)),
        ("authorizer.requestResource.subresource('log').check('get').errored()", json!(false)),
    ] {
        assert_eq!(compile(text).evaluate(&variables), Ok(expected), "{text}");
    }
    let failed = compile("authorizer.path(' ').check('get').allowed()").evaluate(&variables);
    assert_eq!(failed.unwrap_err().to_string(), "path must not be empty");
}

#[test]
fn compile_errors_are_upstreams() {
    for (text, expect, expected) in [
        (
            "x > 1",
            Expect::Bool,
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n | x > 1\n | ^",
        ),
        (
            "object.a == 1 && nope(1)",
            Expect::Bool,
            "compilation failed: ERROR: <input>:1:22: undeclared reference to 'nope' (in container '')\n | object.a == 1 && nope(1)\n | .....................^",
        ),
        ("1 + 1", Expect::Bool, "must evaluate to bool but got int"),
        ("object.metadata.name", Expect::Bool, "must evaluate to bool but got dyn"),
        ("'a' == 'b'", Expect::String, "must evaluate to string but got bool"),
        ("1", Expect::StringOrNull, "must evaluate to one of [string null_type] but got int"),
        (
            "1 == 'a'",
            Expect::Bool,
            "compilation failed: ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, string)'\n | 1 == 'a'\n | ..^",
        ),
        (
            "'a'.matches('(')",
            Expect::Bool,
            "compilation failed: ERROR: <input>:1:13: invalid matches argument\n | 'a'.matches('(')\n | ............^",
        ),
        (
            "true &&\n  zz",
            Expect::Bool,
            "compilation failed: ERROR: <input>:2:3: undeclared reference to 'zz' (in container '')\n |   zz\n | ..^",
        ),
        (
            "'é' == y",
            Expect::Bool,
            "compilation failed: ERROR: <input>:1:8: undeclared reference to 'y' (in container '')\n | 'é' == y\n | .......^",
        ),
        (
            "Object{a: 1} == 1",
            Expect::Bool,
            "compilation failed: ERROR: <input>:1:7: undeclared reference to 'Object' (in container '')\n | Object{a: 1} == 1\n | ......^",
        ),
    ] {
        let error = Expression::compile(text, &NAMES, expect).expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
    let error = Expression::compile("object.a ==", &NAMES, Expect::Bool).unwrap_err().to_string();
    assert!(
        error.starts_with("compilation failed: ERROR: <input>:1:12: Syntax error: mismatched input '<EOF>'"),
        "{error}"
    );
    assert!(error.ends_with("\n | object.a ==\n | ...........^"), "{error}");
    let error = Expression::compile("'é' ==", &NAMES, Expect::Bool).unwrap_err().to_string();
    assert!(error.starts_with("compilation failed: ERROR: <input>:1:7: Syntax error"), "{error}");
}

#[test]
fn a_result_of_another_type_is_an_error() {
    let object = json!({"a": "text"});
    let expression = Expression::compile("[object.a][0]", &NAMES, Expect::Bool).unwrap();
    let result = expression.evaluate(&Variables::new().json("object", Some(&object)));
    assert_eq!(result, Err(EvalError::WrongType { expected: "bool" }));
}

#[test]
fn hostile_loops_end() {
    let many = json!({"list": (0..10_000).collect::<Vec<_>>(), "text": "a".repeat(1_000_000), "texts": vec!["a".repeat(100); 10_000]});
    let variables = Variables::new().json("object", Some(&many));
    for text in [
        "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c >= 0)))",
        "object.list.exists(a, object.list.exists(b, a + b < 0))",
        "object.list.map(a, object.list.map(b, a * b)).size() > 0",
        "object.list.filter(a, object.list.exists_one(b, a == b)).size() > 0",
        "object.list.map(a, object.text + object.text).size() > 0",
        "[object.text + '!'].map(b, object.list.map(a, {'x': b})).size() > 0",
        "[object.text + '!'].map(b, object.list.map(a, [optional.of(b)])).size() > 0",
        "object.list.all(a, object.text.replace('a', object.text) != '')",
        "object.list.map(a, object.text.lowerAscii()).size() > 0",
        "object.list.all(a, object.text.matches('(a|b|ab)*c') || true)",
        "object.texts.all(a, object.texts.join(object.text) != '')",
        "object.list.all(a, object.text.indexOf('a' + object.text) < 0)",
    ] {
        let begin = Instant::now();
        let result = compile(text).evaluate(&variables);
        assert!(matches!(result, Err(EvalError::CostLimit | EvalError::Interrupted)), "{text}: {result:?}");
        assert!(begin.elapsed() < MAX_DURATION + Duration::from_secs(1), "{text}: {:?}", begin.elapsed());
    }
    let fine = compile("object.list.all(a, a >= 0) && object.texts.all(t, t.startsWith('a'))");
    // Its second is one of the clock, which others on a busy machine use up: one of some must do.
    let results: Vec<_> = (0..5).map(|_| fine.evaluate(&variables)).collect();
    assert!(results.contains(&Ok(json!(true))), "{results:?}");
}

#[test]
fn deep_expressions_are_refused_or_fit() {
    for text in [
        vec!["1"; 5_000].join(" + "),
        format!("object{}", ".a".repeat(5_000)),
        format!("{}true{}", "(".repeat(500), ")".repeat(500)),
        format!("{}true", "!".repeat(5_001)),
        format!("object{}", "[0]".repeat(5_000)),
        "object.x ? 1 : ".repeat(3_000) + "2",
        "[".repeat(100_000),
        // What hides the rest from a careless reader: a backslash in a raw text, a quote in a comment, three quotes, an open text.
        format!("r\"\\\" == object{}", ".b".repeat(49_000)),
        format!("// \"\nobject{}", ".b".repeat(49_000)),
        format!("\"\"\"\"\"\" == object{}", ".b".repeat(49_000)),
        format!("' \n object{}", ".b".repeat(49_000)),
    ] {
        let error = Expression::compile(&text, &NAMES, Expect::Any).expect_err("too deep");
        assert!(matches!(error, CompileError::TooDeep { .. } | CompileError::Invalid(_)), "{error}");
    }
    // The deepest that compiles must fit the stack that evaluation has.
    let sum = vec!["object.spec.replicas"; 90].join(" + ");
    assert_eq!(evaluate(&sum), Ok(json!(270)));
    let lists = format!("{}1{}", "[".repeat(60), "]".repeat(60));
    assert!(evaluate(&lists).is_ok());
}

#[test]
fn a_large_object_is_not_copied() {
    let items: Vec<Value> =
        (0..20_000).map(|n| json!({"name": format!("item-{n}"), "value": "x".repeat(20)})).collect();
    let large = json!({"metadata": {"name": "big"}, "items": items});
    let expression = compile("object.metadata.name == 'big' && object.items[19999].name == 'item-19999'");
    let begin = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(expression.evaluate(&Variables::new().json("object", Some(&large))), Ok(json!(true)));
    }
    // It takes half a second; a copy of the object for each would take a minute.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9/.:-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Texts near the grammar: pieces put together.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "object",
        ".a",
        ".b",
        "[0]",
        "['a']",
        " == ",
        " + ",
        " && ",
        " in ",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "?",
        "1",
        "-",
        "'x'",
        "null",
        ".all(x, ",
        ".map(x, x",
        ".exists_one(c, c",
        "size(",
        "has(object.a)",
        "quantity(",
        ".matches('",
        "string(",
        ".?a",
        ".orValue(1)",
        "duration('",
        "1u",
        "b'x'",
        "type(",
        "ip('",
        "!",
        ".sum()",
        ".min()",
        "%",
        ".format([",
        "Object{",
        "\n",
        "é",
        ".indexOf(",
        ".replace(",
        "optional.of(",
        "timestamp(",
        "dyn(",
        "@tick",
        "`",
        "\\",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn nothing_panics(text in prop_oneof![any_text(), "\\PC{0,40}"], object in any_json()) {
        for expect in [Expect::Any, Expect::Mutation] {
            if let Ok(expression) = Expression::compile(&text, &NAMES, expect) {
                let _ = expression.evaluate(&Variables::new().json("object", Some(&object)));
            }
        }
    }

    #[test]
    fn what_is_read_is_what_was_written(object in any_json()) {
        let expression = Expression::compile("object", &NAMES, Expect::Any).unwrap();
        let read = expression.evaluate(&Variables::new().json("object", Some(&object)));
        prop_assert_eq!(read, Ok(object));
    }
}
