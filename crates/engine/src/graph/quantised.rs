//! `QuantizeLinear` and `DequantizeLinear`: networks whose layers were quantised one by one by
//! ONNX's tools, as ONNX Runtime computes them.
//!
//! A layer's sums are of integers. `QuantizeLinear` behind it makes bytes of them; whatever follows
//! byte by byte (ReLU, another quantisation) becomes a table of 256 bytes.

use super::{Pass, Value, What};
use crate::error::Error;
use crate::onnx::{Data, Node, Tensor};
use crate::plan::Bytes;

/// Weights beyond this could saturate where two products are added in 16 bits; the tools keep to
/// it.
const WEIGHT_MAX: i8 = 64;
/// Biases stay within this, so that sums fit.
const BIAS_MAX: i64 = 1 << 30;

/// What a byte stands for: `(byte − zero)·scale`.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Scale {
    pub scale: f32,
    pub zero: i32,
}

/// What the bytes of the last layer stand for, once it is quantised.
pub(super) struct Coding {
    of: Scale,
    /// The value of each byte, after what has been done to it.
    values: [f32; 256],
    /// Nothing has been done to it.
    is_plain: bool,
}

impl Scale {
    fn byte(self, x: f32) -> u8 {
        let rounded = (x / self.scale).round_ties_even() as i32;
        rounded.saturating_add(self.zero).clamp(0, 255) as u8
    }

    pub fn coding(self) -> Coding {
        let value = |byte: usize| (byte as i32 - self.zero) as f32 * self.scale;
        Coding { of: self, values: std::array::from_fn(value), is_plain: true }
    }
}

impl Coding {
    pub fn relu(&mut self) {
        self.values = self.values.map(|x| x.max(0.0));
        self.is_plain = false;
    }

    pub fn values(&self) -> Box<[f32; 256]> {
        Box::new(self.values)
    }
}

/// Weights and biases of a layer; of a quantised one, integers with the scale of the weights.
pub(super) struct Linear<'a> {
    pub shape: &'a [i64],
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
    pub quantised: Option<(f32, &'a [i32])>,
}

impl<'a> Pass<'a> {
    pub(super) fn linear(&self, node: &Node<'a>) -> Result<Linear<'a>, Error> {
        let quantised = |i: usize| match self.values.get(node.inputs.get(i).copied()?) {
            Some(&Value { what: What::Weights { tensor, scale }, .. }) => Some((tensor, scale)),
            _ => None,
        };
        let Some((weights, scale)) = quantised(1) else {
            let (weights, bias) = (self.floats(node, 1)?.to_vec(), self.floats(node, 2)?.to_vec());
            let shape = &self.constant(node, 1)?.shape;
            return Ok(Linear { shape, weights, bias, quantised: None });
        };
        match (&weights.data, quantised(2).map(|(bias, _)| &bias.data)) {
            (Data::I8(numbers), Some(Data::I32(bias)))
                if numbers.iter().all(|w| (-WEIGHT_MAX..=WEIGHT_MAX).contains(w)) =>
            {
                let numbers = numbers.iter().map(|&w| w.into()).collect();
                let floats = vec![0.0; bias.len()];
                let quantised = Some((scale, &bias[..]));
                Ok(Linear { shape: &weights.shape, weights: numbers, bias: floats, quantised })
            }
            _ => Err(node.refused("its weights are not of 7 bits, or its bias not of 32")),
        }
    }

    /// Scale and zero point of a node's inputs 1 and 2.
    fn scale(&self, node: &Node<'a>) -> Result<Scale, Error> {
        let scale = self.constant(node, 1)?.float().filter(|scale| scale.is_normal());
        let scale = scale.filter(|scale| *scale > 0.0);
        let scale = scale.ok_or_else(|| node.refused("its scale is not a positive number"))?;
        let zero = match self.constant(node, 2)?.data {
            Data::U8(ref zero) => zero.first().copied().map(i32::from),
            Data::I8(ref zero) => zero.first().copied().map(i32::from),
            Data::I32(ref zero) => zero.first().copied(),
            _ => None,
        };
        let zero = zero.ok_or_else(|| node.refused("it has no zero point"))?;
        Ok(Scale { scale, zero })
    }

    pub(super) fn dequantize(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let scale = self.scale(node)?;
        let Ok(value) = self.input(node, 0) else {
            let tensor: &'a Tensor = self.constant(node, 0)?;
            if scale.zero != 0 || !matches!(tensor.data, Data::I8(_) | Data::I32(_)) {
                return Err(node.refused("it makes something else than weights"));
            }
            let what = What::Weights { tensor, scale: scale.scale };
            return Ok(Value { shape: tensor.shape.clone(), what });
        };
        match value.clone() {
            Value { shape, what: What::Coded { what, of } } if of == scale => {
                Ok(Value { shape, what: What::Coded { what, of } })
            }
            Value { shape, what: What::Layer { step } } if step == self.step => {
                match &self.coding {
                    Some(coding) if coding.of == scale && coding.is_plain => Ok(self.step(shape)),
                    _ => Err(node.refused("it is not what undoes the quantisation before it")),
                }
            }
            _ => Err(node.refused("it does not follow a quantisation")),
        }
    }

    pub(super) fn quantize(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let scale = self.scale(node)?;
        if !matches!(self.constant(node, 2)?.data, Data::U8(_)) {
            return Err(node.refused("it makes no bytes"));
        }
        match self.input(node, 0)?.clone() {
            Value { shape, what: what @ (What::Image(_) | What::Inputs(_)) } => {
                let what = Box::new(what.mapped(|x| scale.byte(x).into()));
                Ok(Value { shape, what: What::Coded { what, of: scale } })
            }
            Value { shape, what: What::Layer { step } } if step == self.step => {
                let bytes = self.layers.last_mut().and_then(|layer| layer.bytes.as_mut());
                let bytes = bytes.ok_or_else(|| node.refused("the layer before it has floats"))?;
                let coding = match self.coding.take() {
                    None => {
                        bytes.multiplier = bytes.sum_scale / scale.scale;
                        bytes.zero = scale.zero;
                        scale.coding()
                    }
                    Some(coding) if coding.is_plain && coding.of == scale => coding,
                    Some(coding) => {
                        let then = coding.values.map(|x| scale.byte(x));
                        let table = bytes.table.get_or_insert_with(|| {
                            Box::new(std::array::from_fn(|byte| byte as u8))
                        });
                        table.iter_mut().for_each(|byte| *byte = then[usize::from(*byte)]);
                        scale.coding()
                    }
                };
                self.coding = Some(coding);
                Ok(self.step(shape))
            }
            _ => Err(node.refused("the engine cannot quantise this")),
        }
    }

    /// The integers of a layer whose inputs are bytes: the zero point of its inputs goes into the
    /// bias.
    pub(super) fn bytes(
        &mut self,
        node: &Node<'a>,
        taps: usize,
        linear: &Linear<'a>,
        outputs: usize,
    ) -> Result<Option<Bytes>, Error> {
        let Some((scale, bias)) = linear.quantised else {
            return match self.coding {
                None => Ok(None),
                Some(_) => Err(node.refused("it multiplies bytes with floats")),
            };
        };
        let inputs = self.coding.take().filter(|coding| coding.is_plain);
        let inputs = inputs.ok_or_else(|| node.refused("its input is not of bytes"))?.of;
        if taps > 1 && inputs.zero != 0 {
            return Err(node.refused("beyond the ends of its input is not 0"));
        }
        let mut sums: Vec<i64> = bias.iter().map(|&bias| bias.into()).collect();
        for row in linear.weights.chunks_exact(outputs) {
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, &w)| *sum -= i64::from(inputs.zero) * w as i64);
        }
        if sums.iter().any(|sum| sum.abs() > BIAS_MAX) {
            return Err(node.refused("its bias is too large"));
        }
        Ok(Some(Bytes {
            bias: sums.into_iter().map(|sum| sum as i32).collect(),
            sum_scale: inputs.scale * scale,
            multiplier: 0.0,
            zero: 0,
            table: None,
        }))
    }

    /// Whether the last layer's bytes have been made, and nothing else been done to them.
    pub(super) fn is_plainly_coded(&self) -> bool {
        self.coding.as_ref().is_some_and(|coding| coding.is_plain)
    }
}
