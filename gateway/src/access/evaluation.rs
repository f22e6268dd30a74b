//! Evaluates plain conditions: comparisons of members with literals or with each other, and what connects them.
//!
//! The interpreter of the `cel` crate makes an error message for each comparison, looks up the overloads of each function
//! and allocates for each name. A call pays for that with each condition. This walks the same expression over the same
//! values. What other values than texts, whole numbers and truths mean stays with the crate. An expression with anything else
//! in it goes to the interpreter as a whole, so there is one meaning of rules. A property test compares both.

use std::cmp::Ordering;

use cel::common::{
    ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators},
    types::{CelBool, CelInt, CelMap, CelMapKey, CelNull, CelString},
    value::Val,
};

use super::{
    arguments::ReadValue,
    condition::{ARGUMENTS, CALL, Facts},
};

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unevaluated {
    /// A member is missing, or a type does not fit.
    Failed,
    /// It is not plain: the interpreter has to evaluate the whole condition.
    NotPlain,
}

use Unevaluated::{Failed, NotPlain};

/// A value. What most conditions are about stands for itself, without an allocation or a look at its type.
#[derive(Clone, Copy)]
pub(super) enum Operand<'b> {
    Truth(bool),
    Whole(i64),
    Text(&'b str),
    Other(&'b dyn Val),
}

use Operand::{Other, Text, Truth, Whole};

type Evaluation<'b> = Result<Operand<'b>, Unevaluated>;

impl<'b> From<&'b dyn Val> for Operand<'b> {
    fn from(value: &'b dyn Val) -> Self {
        let text = value.downcast_ref::<CelString<'b>>().map(|text| Text(text.inner()));
        let whole = || value.downcast_ref::<CelInt>().map(|whole| Whole(*whole.inner()));
        let truth = || value.downcast_ref::<CelBool>().map(|truth| Truth(*truth.inner()));
        text.or_else(whole).or_else(truth).unwrap_or(Other(value))
    }
}

impl<'b> From<&'b ReadValue<'_>> for Operand<'b> {
    fn from(value: &'b ReadValue<'_>) -> Self {
        match value {
            ReadValue::Text(text) => Text(text),
            ReadValue::Other(value) => (&**value).into(),
        }
    }
}

impl Operand<'_> {
    /// Looks at it as the crate has it.
    fn seen<T>(self, look: impl FnOnce(&dyn Val) -> T) -> T {
        match self {
            Truth(truth) => look(&CelBool::from(truth)),
            Whole(whole) => look(&CelInt::from(whole)),
            Text(text) => look(&CelString::from(text)),
            Other(value) => look(value),
        }
    }

    fn equals(self, other: Operand<'_>) -> bool {
        match (self, other) {
            (Text(left), Text(right)) => left == right,
            (Whole(left), Whole(right)) => left == right,
            (Truth(left), Truth(right)) => left == right,
            _ => self.seen(|left| other.seen(|right| left.equals(right))),
        }
    }

    fn order(self, other: Operand<'_>) -> Result<Ordering, Unevaluated> {
        match (self, other) {
            (Text(left), Text(right)) => Ok(left.cmp(right)),
            (Whole(left), Whole(right)) => Ok(left.cmp(&right)),
            _ => self.seen(|left| {
                let comparer = left.as_comparer().ok_or(Failed)?;
                other.seen(|right| comparer.compare(right).map_err(|_| Failed))
            }),
        }
    }
}

/// The value of a part of a condition.
///
/// # Errors
///
/// When the interpreter would fail, too, or when the part is not plain.
pub(super) fn evaluate<'b>(part: &'b IdedExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    match &part.expr {
        Expr::Literal(literal) => Ok(match literal {
            LiteralValue::String(text) => Text(text.inner()),
            LiteralValue::Int(whole) => Whole(*whole.inner()),
            LiteralValue::Boolean(truth) => Truth(*truth.inner()),
            LiteralValue::Bytes(bytes) => Other(bytes),
            LiteralValue::Double(number) => Other(number),
            LiteralValue::UInt(number) => Other(number),
            LiteralValue::Null => Other(&CelNull),
        }),
        Expr::Ident(name) => facts.variable(name).map(Operand::from).ok_or(NotPlain),
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
        return Ok(Text(text));
    }
    let member = member(&select.operand, &select.field, facts)?;
    if select.test { Ok(Truth(member.is_some())) } else { member.ok_or(Failed) }
}

/// The member of a map; none if it has no such.
fn member<'b>(of: &'b IdedExpr, key: &'b str, facts: &'b Facts<'_, '_>) -> Result<Option<Operand<'b>>, Unevaluated> {
    if matches!(&of.expr, Expr::Ident(name) if name == ARGUMENTS)
        && let Some(found) = facts.argument(key)
    {
        return Ok(found.map(Operand::from));
    }
    let Other(of) = evaluate(of, facts)? else { return Err(Failed) };
    let map: &CelMap<'b> = of.downcast_ref().ok_or(Failed)?;
    Ok(map.inner().get(&CelMapKey::from(key)).map(|value| (&**value).into()))
}

/// What something is called with and how often says most of what it is: few names are compared.
fn called<'b>(call: &'b CallExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    let name = call.func_name.as_str();
    match (call.target.as_deref(), &call.args[..]) {
        (None, [left, right]) => operated(name, left, right, facts),
        (None, [part]) if name == operators::LOGICAL_NOT => Ok(Truth(!truth(evaluate(part, facts)?)?)),
        (None, [of]) | (Some(of), []) if name == "size" => sized(evaluate(of, facts)?),
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
            match (evaluate(part, facts)?, evaluate(text, facts)?) {
                (Text(part), Text(text)) => Ok(Truth(found(text, part))),
                _ => Err(Failed),
            }
        }
        _ => Err(NotPlain),
    }
}

/// An operator between two parts.
fn operated<'b>(name: &str, left: &'b IdedExpr, right: &'b IdedExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    let value = |part: &'b IdedExpr| evaluate(part, facts);
    let compared = |holds: fn(Ordering) -> bool| Ok(Truth(holds(value(left)?.order(value(right)?)?)));
    match name {
        operators::EQUALS => Ok(Truth(value(left)?.equals(value(right)?))),
        operators::NOT_EQUALS => Ok(Truth(!value(left)?.equals(value(right)?))),
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
        return left.map(Truth);
    }
    let right = truth(evaluate(right, facts)?)?;
    if right == settles { Ok(Truth(right)) } else { left.map(|_| Truth(right)) }
}

/// `in`. The elements of a list that is written out need not be copied into one.
fn contained<'b>(element: Operand<'b>, container: &'b IdedExpr, facts: &'b Facts<'_, '_>) -> Evaluation<'b> {
    if let Expr::List(list) = &container.expr
        && list.optional_indices.is_empty()
    {
        let mut found = false;
        for one in &list.elements {
            found |= evaluate(one, facts)?.equals(element);
        }
        return Ok(Truth(found));
    }
    let Other(container) = evaluate(container, facts)? else { return Err(Failed) };
    let container = container.as_container().ok_or(Failed)?;
    element.seen(|element| container.contains(element)).map(Truth).map_err(|_| Failed)
}

/// How large something is; a text in characters.
fn sized(of: Operand<'_>) -> Evaluation<'_> {
    let size = match of {
        Text(text) => i64::try_from(text.chars().count()).ok(),
        of => of.seen(|of| of.as_sizer().map(|of| *of.size().inner())),
    };
    size.map(Whole).ok_or(Failed)
}

pub(super) fn truth(value: Operand<'_>) -> Result<bool, Unevaluated> {
    if let Truth(truth) = value { Ok(truth) } else { Err(Failed) }
}

#[cfg(test)]
mod tests;
