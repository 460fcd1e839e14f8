//! Feature probe: before anything is programmed, tries each kernel feature in a transaction that
//! is never committed, and names what is missing and what that costs.

use keelson_netfilter::nft::{
    BaseChain, Batch, Expr, Family, Field, Hook, KernelNft, Maps, Meta, NftError, Reg, Reject, SetDecl, Verdict,
};

/// A table that only ever exists inside a transaction that is given up.
const TABLE: &str = "keelson-probe";

/// A kernel feature that is missing.
#[derive(Debug)]
pub struct Missing {
    /// The feature, in nft's words.
    pub feature: &'static str,
    /// What does not work without it.
    pub costs: &'static str,
    /// The kernel's answer.
    pub answer: NftError,
}

fn rule(batch: &mut Batch, kind: &'static str, hook: Hook, exprs: &[Expr]) {
    batch.add_table();
    let priority = if kind == "nat" { -100 } else { 0 };
    batch.add_chain("c", Some(BaseChain { kind, hook, priority }));
    batch.add_rule("c", exprs);
}

/// Probes all features for a family.
///
/// # Errors
/// When nf_tables itself cannot be spoken to.
pub fn probe(nft: &mut KernelNft, family: Family) -> Result<Vec<Missing>, NftError> {
    let meta = |key| Expr::Meta { key, into: Reg(0) };
    let addr_len = if family == Family::Ipv4 { 4 } else { 16 };
    let addr = if family == Family::Ipv4 { Field::Ipv4 } else { Field::Ipv6 };
    type Write<'a> = Box<dyn Fn(&mut Batch) + 'a>;
    let tries: Vec<(&'static str, &'static str, Write<'_>)> = vec![
        ("nf_tables (CONFIG_NF_TABLES)", "nothing works: use another mode", Box::new(Batch::add_table)),
        (
            "nat chains and dnat (CONFIG_NFT_NAT)",
            "Services cannot be reached",
            Box::new(move |b| {
                let value = vec![0; addr_len];
                let dnat = Expr::Dnat { family: family as u8, addr: Reg(0), port: Reg(0).after(addr_len) };
                let port = Expr::Immediate { into: Reg(0).after(addr_len), value: vec![0, 80] };
                rule(b, "nat", Hook::Prerouting, &[Expr::Immediate { into: Reg(0), value }, port, dnat]);
            }),
        ),
        (
            "masquerade (CONFIG_NFT_MASQ)",
            "node ports and traffic from outside cannot find their way back",
            Box::new(|b| rule(b, "nat", Hook::Postrouting, &[Expr::Masquerade])),
        ),
        (
            "numgen random (CONFIG_NFT_NUMGEN)",
            "no spreading over endpoints",
            Box::new(|b| rule(b, "filter", Hook::Forward, &[Expr::Random { modulus: 2, into: Reg(0) }])),
        ),
        (
            "fib type (CONFIG_NFT_FIB_IPV4 or _IPV6)",
            "node ports cannot be told from other traffic",
            Box::new(|b| rule(b, "filter", Hook::Input, &[Expr::FibType { source: false, into: Reg(0) }])),
        ),
        (
            "ct state and status (CONFIG_NFT_CT)",
            "Services without endpoints cannot refuse",
            Box::new(|b| {
                let ct = Expr::Ct { key: keelson_netfilter::nft::Ct::State, into: Reg(0) };
                rule(b, "filter", Hook::Forward, &[ct]);
            }),
        ),
        (
            "reject (CONFIG_NFT_REJECT)",
            "Services without endpoints hang instead of refusing",
            Box::new(|b| {
                let tcp = Expr::Cmp { op: keelson_netfilter::nft::Cmp::Eq, reg: Reg(0), value: vec![6] };
                rule(b, "filter", Hook::Forward, &[meta(Meta::L4Proto), tcp, Expr::Reject(Reject::TcpReset)]);
            }),
        ),
        (
            "verdict maps with concatenated keys (CONFIG_NF_TABLES, kernel 4.10)",
            "no constant-rules layout",
            Box::new(move |b| {
                b.add_table();
                b.add_set(&SetDecl::map("m", &[addr, Field::Proto, Field::Port], Maps::Verdicts));
                let words = 2 + addr_len.div_ceil(4) as u8;
                let key = (0..words).map(|slot| Expr::Meta { key: Meta::Mark, into: Reg(slot) });
                let lookup = Expr::LookupVerdict { set: "m".to_owned(), key: Reg(0) };
                b.add_chain("c", None);
                let exprs: Vec<Expr> = key.chain([lookup]).collect();
                b.add_rule("c", &exprs);
                b.add_rule("c", &[Expr::Counter, Expr::Verdict(Verdict::Drop)]);
            }),
        ),
        (
            "dynamic sets with timeout (CONFIG_NF_TABLES, kernel 4.3)",
            "no session affinity",
            Box::new(move |b| {
                b.add_table();
                let dynamic = Some(keelson_netfilter::nft::Dynamic { timeout_ms: 1000, size: 16 });
                b.add_set(&SetDecl { dynamic, ..SetDecl::set("s", &[Field::Ipv4]) });
                b.add_chain("c", None);
                b.add_rule("c", &[meta(Meta::Mark), Expr::SetUpdate { set: "s".to_owned(), key: Reg(0) }]);
            }),
        ),
    ];
    let mut missing = Vec::new();
    for (feature, costs, write) in tries {
        let mut batch = Batch::new(family, TABLE);
        write(&mut batch);
        match nft.check(&mut batch) {
            Ok(()) => {}
            Err(answer @ NftError::Refused { .. }) => missing.push(Missing { feature, costs, answer }),
            Err(other) => return Err(other),
        }
    }
    Ok(missing)
}
