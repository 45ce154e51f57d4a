//! Nodes before the first layer: what is done to the numbers of the input, and to the count of a
//! series' elements.

use std::rc::Rc;

use super::{Pass, Value, What};
use crate::error::Error;
use crate::onnx::{Data, Node};
use crate::tabulated::{Source, Tabulated};

/// ONNX's number of a type.
const FLOAT: i64 = 1;
const INT32: i64 = 6;
const INT64: i64 = 7;

impl<'a> Pass<'a> {
    /// The first axis stays the batch; the others multiply to what they were.
    pub(super) fn reshape(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let Value { shape, what } = self.input(node, 0)?.clone();
        let wanted = self.integers(node, 1)?;
        // The quantised CNN has the batch where an image has its height.
        match (&what, wanted, &shape[..]) {
            (What::Table(table), [1, -1, places, width], [-1, numbers])
                if *places == self.places
                    && table.width as i64 == *width
                    && places.checked_mul(*width) == Some(*numbers) =>
            {
                return Ok(Value { shape: wanted.to_vec(), what });
            }
            (&What::Layer { step }, [-1, numbers], [1, -1, places, channels])
                if step == self.step && places * channels == *numbers =>
            {
                return Ok(self.step(wanted.to_vec()));
            }
            _ => {}
        }
        let product = |axes: &[i64]| axes.iter().try_fold(1i64, |all, &axis| all.checked_mul(axis));
        let [-1, axes @ ..] = wanted else {
            return Err(node.refused("it does not keep the rows of the batch"));
        };
        if axes.iter().any(|&axis| axis < 1) || product(axes) != shape.get(1..).and_then(product) {
            return Err(node.refused(format!("{shape:?} does not become {wanted:?}")));
        }
        let what = match what {
            What::Series => match axes {
                [_] => What::Series,
                [1, 1, _] => What::Image(Rc::new(Tabulated::identity(Source::Channel(0)))),
                _ => return Err(node.refused(format!("{shape:?} becomes {wanted:?}"))),
            },
            What::Context if matches!(axes, [] | [1]) => {
                What::Table(Rc::new(Tabulated::identity(Source::Context(0))))
            }
            What::Table(table) if shape.len() > 2 && axes.len() == 1 => What::Inputs(vec![table]),
            _ => return Err(node.refused("the engine does not know this reshape")),
        };
        Ok(Value { shape: wanted.to_vec(), what })
    }

    /// `[-1, places, code]` becomes `[-1, code, places]`, and what a convolution made is put in the
    /// order of places, in which the engine has it anyway.
    pub(super) fn transpose(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["perm"])?;
        let Value { shape, what } = self.input(node, 0)?.clone();
        match (what, node.numbers("perm"), &shape[..]) {
            (What::Table(table), Some([0, 2, 1]), &[rows, places, code]) => {
                Ok(Value { shape: vec![rows, code, places], what: What::Image(table) })
            }
            (What::Table(table), Some([0, 3, 1, 2]), &[1, rows, places, code]) => {
                Ok(Value { shape: vec![1, code, rows, places], what: What::Image(table) })
            }
            (What::Layer { step }, Some([0, 2, 3, 1]), &[1, channels, rows, places])
                if step == self.step =>
            {
                self.is_by_place = true;
                Ok(self.step(vec![1, rows, places, channels]))
            }
            _ => Err(node.refused("the engine does not know this order of axes")),
        }
    }

    /// `[-1, code, places]` becomes `[-1, code, 1, places]`.
    pub(super) fn unsqueeze(&self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let axes = self.integers(node, 1)?;
        match self.input(node, 0)? {
            Value { shape, what: What::Image(table) } if shape.len() == 3 && axes == [2] => {
                let shape = vec![-1, shape[1], 1, shape[2]];
                Ok(Value { shape, what: What::Image(Rc::clone(table)) })
            }
            _ => Err(node.refused("the engine does not know this axis")),
        }
    }

    /// Puts inputs of the first layer side by side.
    pub(super) fn concat(&self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["axis"])?;
        if node.number("axis") != Some(1) {
            return Err(node.refused("it does not join along the second axis"));
        }
        if let ([series, context], Ok(Value { what: What::Series, .. })) =
            (&node.inputs[..], self.input(node, 0))
        {
            let axes = [series, context].map(|name| self.values.get(*name).map(|it| &it.shape[..]));
            let is_context = matches!(self.input(node, 1)?.what, What::Context);
            return match axes {
                [Some([-1, series]), Some([-1, context])] if is_context => {
                    Ok(Value { shape: vec![-1, series + context], what: What::Numbers })
                }
                _ => Err(node.refused("it does not join the series and the context")),
            };
        }
        let (mut parts, mut width) = (vec![], 0i64);
        for i in 0..node.inputs.len() {
            let Value { shape, what } = self.input(node, i)?;
            let [-1, columns] = shape[..] else {
                return Err(node.refused(format!("its input {i} has not two axes")));
            };
            match what {
                What::Inputs(more) => parts.extend(more.iter().cloned()),
                What::Table(table) if table.width as i64 == columns => parts.push(table.clone()),
                _ => return Err(node.refused(format!("its input {i} is nothing to join"))),
            }
            width = width.saturating_add(columns);
        }
        Ok(Value { shape: vec![-1, width], what: What::Inputs(parts) })
    }

    pub(super) fn clip(&self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let (low, high) = (self.float(node, 1)?, self.float(node, 2)?);
        if low.is_nan() || high.is_nan() || low > high {
            return Err(node.refused("its bounds are in no order"));
        }
        if let Value { shape, what: What::Image(table) } = self.input(node, 0)? {
            let what = What::Image(Rc::new(table.map(|x| x.clamp(low, high))));
            return Ok(Value { shape: shape.clone(), what });
        }
        self.mapped(node, |x| x.clamp(low, high))
    }

    pub(super) fn abs(&self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        self.mapped(node, f32::abs)
    }

    /// To an integer, by cutting off the fraction, or back to a float.
    pub(super) fn cast(&self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["to"])?;
        match (node.number("to"), self.input(node, 0)?) {
            (Some(INT32 | INT64), count @ Value { what: What::Count, .. }) => Ok(count.clone()),
            (Some(INT32 | INT64), steps @ Value { what: What::Steps, .. }) => Ok(steps.clone()),
            (Some(INT32 | INT64), _) => self.mapped(node, f32::trunc),
            (Some(FLOAT), _) => self.mapped(node, |x| x),
            _ => Err(node.refused("the engine does not know this type")),
        }
    }

    /// A function of one integer, then another one.
    pub(super) fn mapped(
        &self,
        node: &Node<'a>,
        f: impl Fn(f32) -> f32,
    ) -> Result<Value<'a>, Error> {
        let (shape, table) = self.table(node, 0)?;
        Ok(Value { shape, what: What::Table(Rc::new(table.map(f))) })
    }

    /// A part of an input, or a look-up in a constant.
    pub(super) fn gather(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["axis"])?;
        match (self.input(node, 0), node.number("axis").unwrap_or(0)) {
            (Ok(value), 1) => self.part(node, value),
            (Err(_), 0) => self.look_up(node),
            _ => Err(node.refused("the engine does not know this axis")),
        }
    }

    /// A channel of the series or a number of the context.
    fn part(&self, node: &Node<'a>, Value { shape, what }: &Value<'a>) -> Result<Value<'a>, Error> {
        let at = self.constant(node, 1)?;
        let Some(&[index]) = at.integers() else {
            return Err(node.refused("it takes more than one channel or number"));
        };
        let count = shape.get(1).copied().unwrap_or_default();
        if !(0..count).contains(&index) {
            return Err(node.refused("it takes a channel or number that is not there"));
        }
        let source = match what {
            What::Series if shape.len() == 3 && at.shape.is_empty() => {
                Source::Channel(index as usize)
            }
            What::Context if at.shape.len() < 2 => Source::Context(index as usize),
            _ => return Err(node.refused("the engine cannot take a part of this")),
        };
        let shape = [&[-1], &at.shape[..], &shape[2..]].concat();
        Ok(Value { shape, what: What::Table(Rc::new(Tabulated::identity(source))) })
    }

    fn look_up(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        let constant = self.constant(node, 0)?;
        if let Value { shape, what: What::Count } = self.input(node, 1)? {
            let factors = constant.floats().filter(|_| constant.shape.len() == 1);
            let factors = factors.and_then(|factors| factors.get(..=self.places as usize));
            let is_sane = |factors: &&[f32]| factors.iter().all(|x| x.is_finite() && *x > 0.0);
            return match factors.filter(is_sane) {
                Some(found) => {
                    Ok(Value { shape: shape.clone(), what: What::Factors(found.to_vec()) })
                }
                None => Err(node.refused("its table is no list of factors for each count")),
            };
        }
        if let Value { shape, what: What::Steps } = self.input(node, 1)?.clone() {
            return self.step_scores(node, constant, shape);
        }
        let (mut shape, table) = self.table(node, 1)?;
        let width = match constant.shape[..] {
            [_] => 1,
            [_, width] if width > 0 => {
                shape.push(width);
                width as usize
            }
            _ => return Err(node.refused("its table has neither one nor two axes")),
        };
        let rows = match &constant.data {
            Data::F32(values) => values.clone(),
            Data::U8(values) => values.iter().map(|&value| f32::from(value)).collect(),
            _ => return Err(node.refused("its table is of a type that is not read")),
        };
        let gathered = table.gather(rows, width);
        let gathered = gathered.ok_or_else(|| node.refused("an index lies outside its table"))?;
        Ok(Value { shape, what: What::Table(Rc::new(gathered)) })
    }

    /// Counts the elements that are there.
    pub(super) fn reduce_sum(&self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["keepdims"])?;
        let (shape, table) = self.table(node, 0)?;
        let is_count = shape == [-1, self.places]
            && table.source == Source::Channel(0)
            && self.integers(node, 1)? == [1]
            && node.number("keepdims").unwrap_or(1) == 1
            && table.is_presence();
        match is_count {
            true => Ok(Value { shape: vec![-1, 1], what: What::Count }),
            false => Err(node.refused("it sums something else than the elements that are there")),
        }
    }
}
