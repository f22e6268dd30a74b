//! Evaluates plain conditions: comparisons of members with literals or with each other, and what connects them.
//!
//! The interpreter of the `cel` crate makes an error message for each comparison, looks up the overloads of each function
//! and allocates for each name. A call pays for that with each condition. This walks the same expression over the same
//! values. What values mean stays with the crate: equality, order and membership are its own. An expression with anything
//! else in it goes to the interpreter as a whole, so there is one meaning of rules. A property test compares both.

use std::{cmp::Ordering, sync::LazyLock};

use cel::common::{
    ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators},
    types::{CelBool, CelInt, CelMap, CelMapKey, CelString},
    value::CowVal,
};
use cel::context::VariableResolver;

use super::condition::{ARGUMENTS, CALL, Facts};

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unevaluated {
    /// A member is missing, or a type does not fit.
    Failed,
    /// It is not plain: the interpreter has to evaluate the whole condition.
    NotPlain,
}

use Unevaluated::{Failed, NotPlain};

type Evaluation<'b> = Result<CowVal<'b, 'b>, Unevaluated>;

/// The value of a part of a condition.
///
/// # Errors
///
/// When the interpreter would fail, too, or when the part is not plain.
pub(super) fn evaluate<'b>(part: &'b IdedExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    match &part.expr {
        Expr::Literal(literal) => Ok(literal.to_val()),
        Expr::Ident(name) => facts.resolve(name).ok_or(NotPlain),
        Expr::Select(select) => selected(select, facts),
        Expr::Call(call) => called(call, facts),
        _ => Err(NotPlain),
    }
}

/// `a.b`, or `has(a.b)`.
fn selected<'b>(select: &'b SelectExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    if !select.test
        && matches!(&select.operand.expr, Expr::Ident(name) if name == CALL)
        && let Some(text) = facts.of_the_call(&select.field)
    {
        return Ok(CowVal::owned(CelString::from(text)));
    }
    let member = member(&select.operand, &select.field, facts)?;
    if select.test { Ok(boolean(member.is_some())) } else { member.ok_or(Failed) }
}

/// The member of a map; none if it has no such.
fn member<'b>(of: &'b IdedExpr, key: &'b str, facts: &'b Facts<'_, '_>) -> Result<Option<CowVal<'b, 'b>>, Unevaluated> {
    if matches!(&of.expr, Expr::Ident(name) if name == ARGUMENTS)
        && let Some(found) = facts.argument(key)
    {
        return Ok(found.map(CowVal::Borrowed));
    }
    let of = evaluate(of, facts)?;
    // What is not borrowed is a text or a number.
    let CowVal::Borrowed(of) = of else { return Err(Failed) };
    let map: &CelMap<'b> = of.downcast_ref().ok_or(Failed)?;
    Ok(map.inner().get(&CelMapKey::from(key)).map(|value| CowVal::Borrowed(&**value)))
}

/// What something is called with and how often says most of what it is: few names are compared.
fn called<'b>(call: &'b CallExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    let name = call.func_name.as_str();
    match (call.target.as_deref(), &call.args[..]) {
        (None, [left, right]) => operated(name, left, right, facts),
        (None, [part]) if name == operators::LOGICAL_NOT => Ok(boolean(!truth(evaluate(part, facts)?)?)),
        (None, [of]) | (Some(of), []) if name == "size" => sized(&evaluate(of, facts)?),
        (None, [condition, yes, no]) if name == operators::CONDITIONAL => {
            evaluate(if truth(evaluate(condition, facts)?)? { yes } else { no }, facts)
        }
        (Some(text), [part]) => {
            let found: fn(&str, &str) -> bool = match name {
                "startsWith" => |text, part| text.starts_with(part),
                "endsWith" => |text, part| text.ends_with(part),
                "contains" => |text, part| text.contains(part),
                _ => return Err(NotPlain),
            };
            searched(evaluate(part, facts)?, evaluate(text, facts)?, found)
        }
        _ => Err(NotPlain),
    }
}

/// An operator between two parts.
fn operated<'b>(name: &str, left: &'b IdedExpr, right: &'b IdedExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    let value = |part: &'b IdedExpr| evaluate(part, facts);
    let compared = |holds: fn(Ordering) -> bool| {
        let (left, right) = (value(left)?, value(right)?);
        let order = left.as_comparer().ok_or(Failed)?.compare(&*right).map_err(|_| Failed)?;
        Ok(boolean(holds(order)))
    };
    match name {
        operators::EQUALS => Ok(boolean(value(left)? == value(right)?)),
        operators::NOT_EQUALS => Ok(boolean(value(left)? != value(right)?)),
        operators::LESS_EQUALS => compared(Ordering::is_le),
        operators::GREATER_EQUALS => compared(Ordering::is_ge),
        operators::LESS => compared(Ordering::is_lt),
        operators::GREATER => compared(Ordering::is_gt),
        operators::IN => contained(value(left)?, right, facts),
        operators::LOGICAL_AND => connected(left, right, false, facts),
        operators::LOGICAL_OR => connected(left, right, true, facts),
        operators::INDEX => match &right.expr {
            Expr::Literal(LiteralValue::String(key)) => member(left, key, facts)?.ok_or(Failed),
            _ => Err(NotPlain),
        },
        _ => Err(NotPlain),
    }
}

/// `&&` and `||`: one side that settles it makes up for a failure of the other.
fn connected<'b>(left: &'b IdedExpr, right: &'b IdedExpr, settles: bool, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    let left = evaluate(left, facts).and_then(truth);
    if left == Ok(settles) || left == Err(NotPlain) {
        return left.map(boolean);
    }
    let right = truth(evaluate(right, facts)?)?;
    if right == settles { Ok(boolean(right)) } else { left.map(|_| boolean(right)) }
}

/// `in`. The elements of a list that is written out need not be copied into one.
fn contained<'b>(element: CowVal<'b, 'b>, container: &'b IdedExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    if let Expr::List(list) = &container.expr
        && list.optional_indices.is_empty()
    {
        let mut found = false;
        for one in &list.elements {
            found |= evaluate(one, facts)?.equals(&*element);
        }
        return Ok(boolean(found));
    }
    let container = evaluate(container, facts)?;
    container.as_container().ok_or(Failed)?.contains(&*element).map(boolean).map_err(|_| Failed)
}

/// How large something is.
fn sized<'b>(of: &CowVal<'b, 'b>) -> Evaluation<'b> {
    /// Sizes that need no allocation.
    static SIZES: LazyLock<Vec<CelInt>> = LazyLock::new(|| (0..1024).map(CelInt::from).collect());
    // Of a text that is its characters, which are its bytes where all are of ASCII.
    let ascii = of.downcast_ref::<CelString<'_>>().filter(|text| text.is_ascii());
    if let Some(known) = ascii.and_then(|text| SIZES.get(text.len())) {
        return Ok(CowVal::Borrowed(known));
    }
    let size = of.as_sizer().ok_or(Failed)?.size();
    let known = usize::try_from(*size.inner()).ok().and_then(|at| SIZES.get(at));
    Ok(known.map_or_else(|| CowVal::owned(size), |known| CowVal::Borrowed(known)))
}

fn searched<'b>(part: CowVal<'b, 'b>, text: CowVal<'b, 'b>, found: fn(&str, &str) -> bool) -> Evaluation<'b> {
    let text: &CelString<'_> = text.downcast_ref().ok_or(Failed)?;
    let part: &CelString<'_> = part.downcast_ref().ok_or(Failed)?;
    Ok(boolean(found(text, part)))
}

pub(super) fn truth(value: CowVal<'_, '_>) -> Result<bool, Unevaluated> {
    value.downcast_ref::<CelBool>().map(|truth| *truth.inner()).ok_or(Failed)
}

/// Needs no allocation.
fn boolean<'b>(value: bool) -> CowVal<'b, 'b> {
    CowVal::Borrowed(if value { &CelBool::TRUE } else { &CelBool::FALSE })
}

#[cfg(test)]
mod tests;
