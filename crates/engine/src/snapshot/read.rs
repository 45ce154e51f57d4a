//! Reads a snapshot. A file may come from anywhere, so all that the kernels rely on is checked.

use super::{FORMAT, HASH_DIGITS, Number, START, VERSION, hash};
use crate::compile::SCORE_MAX;
use crate::error::Error;
use crate::graph::{INPUTS_MAX, OUTPUTS_MAX, PLACES_MAX};
use crate::integers::{BYTE_MAX, First, Hidden, Integers, Kind, Output, WORD_MAX};
use crate::plan::{Forest, TreeNode};
use crate::tabulated::{ELEMENT_MAX, Lookup};

pub(crate) enum Content {
    Network(Box<Integers>),
    Trees(Forest),
}

pub(crate) fn read(file: &[u8]) -> Result<Content, Error> {
    let file = File::open(file)?;
    match file.has("trees.roots") {
        true => trees(&file).map(Content::Trees),
        false => Ok(Content::Network(Box::new(network(&file)?))),
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Snapshot(why.into()))
}

struct File<'a> {
    header: &'a str,
    numbers: &'a [u8],
}

impl<'a> File<'a> {
    fn open(file: &'a [u8]) -> Result<Self, Error> {
        const TRUNCATED: &str = "it is no snapshot, or it is truncated";
        let Some((len, rest)) = file.split_first_chunk() else { return refused(TRUNCATED) };
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let Some((header, numbers)) = rest.split_at_checked(len) else { return refused(TRUNCATED) };
        let Ok(header) = std::str::from_utf8(header) else { return refused(TRUNCATED) };
        let hash_and_more = header.strip_prefix(START);
        let Some((found, more)) = hash_and_more.and_then(|it| it.split_at_checked(HASH_DIGITS))
        else {
            return refused(TRUNCATED);
        };
        let version = more.strip_prefix(FORMAT).and_then(|more| more.split_once('"'));
        match version.map(|(version, _)| version.parse()) {
            Some(Ok(VERSION)) => {}
            Some(Ok(version)) => {
                let why = format!("it has version {version}, and this fenxi reads {VERSION}");
                return refused(why);
            }
            _ => return refused(TRUNCATED),
        }
        if found != format!("{:016x}", hash(file)) {
            return refused("its content does not have the hash in its header: it is damaged");
        }
        Ok(Self { header, numbers })
    }

    fn has(&self, name: &str) -> bool {
        self.header.contains(&format!(r#""{name}":{{"dtype":""#))
    }

    /// A tensor's shape and numbers. Its name is looked for as text: within a text of the header
    /// it could not stand so, for quotes have a backslash there.
    fn tensor<T: Number>(&self, name: &str) -> Result<(Vec<usize>, Vec<T>), Error> {
        let start = format!(r#""{name}":{{"dtype":"{}","shape":["#, T::KIND);
        let list = |text: &str| -> Option<Vec<usize>> {
            text.split(',').map(|number| number.trim().parse().ok()).collect()
        };
        let found = self.header.split_once(&start).and_then(|(_, rest)| {
            let (shape, rest) = rest.split_once(r#"],"data_offsets":["#)?;
            let (shape, offsets) = (list(shape)?, list(rest.split_once(']')?.0)?);
            let bytes = self.numbers.get(*offsets.first()?..*offsets.get(1)?)?;
            let count = shape.iter().try_fold(1, |count: usize, len| count.checked_mul(*len))?;
            (Some(bytes.len()) == count.checked_mul(T::BYTES)).then(|| (shape, T::all(bytes)))
        });
        found.ok_or_else(|| Error::Snapshot(format!("it has no {name}, or one of another shape")))
    }

    fn list<T: Number>(&self, name: &str) -> Result<Vec<T>, Error> {
        Ok(self.tensor(name)?.1)
    }

    fn one<T: Number>(&self, name: &str) -> Result<T, Error> {
        match self.list(name)?[..] {
            [number] => Ok(number),
            _ => refused(format!("{name} is not one number")),
        }
    }

    /// Names with numbers from 0 on, as many as there are.
    fn each<T>(
        &self,
        before: &str,
        after: &str,
        read: impl Fn(String) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let names = (0..).map(|i| format!("{before}{i}"));
        names.take_while(|name| self.has(&format!("{name}{after}"))).map(read).collect()
    }

    /// Channels, places, numbers of the context, classes.
    fn shape(&self) -> Result<[usize; 4], Error> {
        let shape: Vec<i32> = self.list("shape")?;
        let limits = [OUTPUTS_MAX, PLACES_MAX, OUTPUTS_MAX, OUTPUTS_MAX];
        let least = [1, 1, 0, 1];
        let is_sane = |((&it, most), least)| (least..=most).contains(&i64::from(it));
        match shape[..].try_into() {
            Ok(all) if shape.iter().zip(limits).zip(least).all(is_sane) => {
                Ok(<[i32; 4]>::map(all, |it| it as usize))
            }
            _ => refused("its shape is impossible"),
        }
    }
}

fn network(file: &File<'_>) -> Result<Integers, Error> {
    let [_, places, context, classes] = file.shape()?;
    let lookups = file.each("lookup", ".column", |name| {
        let column = file.one(&format!("{name}.column"))?;
        let row_of = file.list(&format!("{name}.row_of"))?;
        Ok((index(column).unwrap_or(usize::MAX), Lookup { low: 0, row_of }))
    })?;
    let (shape, kind) = if file.has("first.taps") {
        let (shape, taps) = file.tensor("first.taps")?;
        let (bias, multipliers) = (file.list("first.bias")?, file.list("first.multipliers")?);
        (shape, Kind::Convolution { taps, bias, multipliers })
    } else {
        let context = file.each("first.context", "", |name| {
            Ok((index(file.one(&format!("{name}.lookup"))?), file.list(&name)?))
        })?;
        let (shape, tables) = file.tensor("first.tables")?;
        (shape, Kind::Dense { tables: tables[..].into(), context })
    };
    let [_, codes, width] = shape[..] else { return refused("its first layer has no shape") };
    let hidden = file.each("hidden", ".weights", |name| {
        let (shape, weights) = file.tensor(&format!("{name}.weights"))?;
        let (bias, shifts): (Vec<i32>, _) =
            (file.list(&format!("{name}.bias"))?, file.list(&format!("{name}.shifts"))?);
        let top = file.one(&format!("{name}.top"))?;
        Ok(Hidden { taps: shape[0], outputs: bias.len(), weights, bias, shifts, top })
    })?;
    let network = Integers {
        places,
        elements: Lookup { low: file.one("elements.low")?, row_of: file.list("elements.row_of")? },
        codes,
        context,
        lookups,
        first: First { width, top: file.one("first.top")?, kind },
        hidden,
        output: Output {
            classes,
            weights: file.list("output.weights")?,
            shift: file.one("output.shift")?,
            lookup: index(file.one("output.lookup")?),
            scores: file.list("output.scores")?,
            temperatures: file.list("output.temperatures")?,
        },
    };
    match is_sound(&network) {
        true => Ok(network),
        false => refused("its numbers do not fit each other"),
    }
}

/// Whether lengths fit, indices find something, and sums stay within their bits.
fn is_sound(network: &Integers) -> bool {
    let Integers { places, elements, codes, context, lookups, first, hidden, output } = network;
    let (width, places) = (first.width, *places);
    let at_zero = usize::try_from(-i64::from(elements.low)).unwrap_or(usize::MAX);
    let are_elements_sound = at_zero <= ELEMENT_MAX as usize
        && at_zero < elements.row_of.len()
        && *codes <= 1 << 16
        && elements.row_of.len() <= 2 * ELEMENT_MAX as usize + 1
        && elements.row_of.iter().all(|&row| usize::from(row) < *codes);
    let are_lookups_sound = lookups.iter().all(|(column, lookup)| {
        column < context && (1..=ELEMENT_MAX as usize + 1).contains(&lookup.row_of.len())
    });
    // Whether a table has as many rows as a look-up asks for.
    let has_rows = |lookup: Option<usize>, len: usize, width: usize| match lookup {
        None => len >= width,
        Some(i) => lookups.get(i).is_some_and(|(_, lookup)| {
            lookup.row_of.iter().all(|&row| (usize::from(row) + 1) * width <= len)
        }),
    };
    let is_first_sound = (1..=OUTPUTS_MAX as usize).contains(&width)
        && [BYTE_MAX, WORD_MAX].contains(&first.top)
        && match &first.kind {
            Kind::Dense { tables, context } => {
                tables.len() == places * codes * width
                    && context.iter().all(|(lookup, rows)| {
                        rows.len() % width == 0 && has_rows(*lookup, rows.len(), width)
                    })
            }
            Kind::Convolution { taps, bias, multipliers } => {
                taps.len() == 3 * codes * width
                    && bias.len() == width
                    && multipliers.len() == width
                    && multipliers.iter().all(|&it| it >= 0)
            }
        };
    let (mut inputs, mut is_by_place) = (width, matches!(first.kind, Kind::Convolution { .. }));
    let mut from = first.top;
    let rows_of = |taps: usize, inputs: usize, is_by_place: bool| match (taps, is_by_place) {
        (1, true) => places * inputs,
        (1, false) => inputs,
        (3, true) => 3 * inputs,
        _ => 0,
    };
    let are_hidden_sound = hidden.iter().all(|layer| {
        let rows = rows_of(layer.taps, inputs, is_by_place);
        // Bytes do not follow words, and convolutions take bytes.
        let are_numbers_sound = (layer.top == WORD_MAX
            || (layer.top, from) == (BYTE_MAX, BYTE_MAX))
            && (layer.taps == 1 || from == BYTE_MAX);
        (inputs, is_by_place) = (layer.outputs, layer.taps == 3);
        let before = std::mem::replace(&mut from, layer.top);
        are_numbers_sound
            && (1..=INPUTS_MAX as usize).contains(&rows)
            && (1..=OUTPUTS_MAX as usize).contains(&layer.outputs)
            && layer.weights.len() == rows * layer.outputs
            && layer.shifts.len() == layer.outputs
            && layer.shifts.iter().all(|shift| (0..=24).contains(shift))
            && layer.bias.len() == layer.outputs
            && layer.bias.iter().enumerate().all(|(column, bias)| {
                let most = largest_sum(&layer.weights, column, layer.outputs, before);
                most.is_some_and(|it| it + i64::from(*bias).abs() <= i64::from(i32::MAX))
            })
    });
    let rows = rows_of(1, inputs, is_by_place);
    let classes = output.classes;
    are_elements_sound
        && are_lookups_sound
        && is_first_sound
        && are_hidden_sound
        && output.weights.len() == rows * classes
        && from == WORD_MAX
        && output.scores.len() % classes == 0
        && has_rows(output.lookup, output.scores.len(), classes)
        && output.temperatures.len() == places + 1
        && output.temperatures.iter().all(|&it| it >= 0)
        && are_scores_sound(output)
}

/// The largest sum of products in a column, if its weights fit activations up to `top`.
fn largest_sum(weights: &[i16], column: usize, columns: usize, top: i16) -> Option<i64> {
    let column = weights.get(column..)?.iter().step_by(columns);
    let fits = |w: i16| top > BYTE_MAX || w.unsigned_abs() <= BYTE_MAX.unsigned_abs();
    let product = |&w: &i16| fits(w).then(|| i64::from(top) * i64::from(w).abs());
    column.map(product).sum()
}

fn are_scores_sound(output: &Output) -> bool {
    let Output { classes, weights, shift, scores, .. } = output;
    let is_sound = |class: usize| {
        largest_sum(weights, class, *classes, WORD_MAX).is_some_and(|most| {
            most <= i64::from(i32::MAX) - (1 << (shift - 1)) && most >> shift <= SCORE_MAX
        })
    };
    (1..=30).contains(shift)
        && (0..*classes).all(is_sound)
        && scores.iter().all(|&score| i64::from(score).abs() <= SCORE_MAX)
}

fn trees(file: &File<'_>) -> Result<Forest, Error> {
    let [channels, places, context, classes] = file.shape()?;
    let roots: Vec<i32> = file.list("trees.roots")?;
    let (features, thresholds): (Vec<i32>, Vec<f32>) =
        (file.list("trees.features")?, file.list("trees.thresholds")?);
    let (next, steps): (Vec<i32>, Vec<u16>) = (file.list("trees.next")?, file.list("trees.steps")?);
    let forest = Forest {
        channels,
        places,
        context,
        classes,
        trees: vec![],
        scores: file.list("trees.scores")?,
        inverse_temperatures: file.list("trees.temperatures")?,
    };
    let count = features.len();
    let ends = roots.iter().skip(1).copied().chain([count as i32]);
    let bounds = roots.iter().zip(ends).map(|(&root, end)| Some((index(root)?, index(end)?)));
    let tree = |bounds: Option<(usize, usize)>| -> Option<Vec<TreeNode>> {
        let (root, end) = bounds.filter(|(root, end)| root < end && *end <= count)?;
        let mut has_parent = vec![false; end - root];
        let node = |at: usize| {
            let [first, second] = [next[2 * at], next[2 * at + 1]].map(index);
            let (first, second) = (first?, second?);
            let Some(feature) = index(features[at]) else {
                let adds = steps.get(2 * first..)?.get(..second.checked_mul(2)?)?;
                let adds = adds.as_chunks().0.iter().map(|&[class, steps]| {
                    let class = usize::from(class);
                    Some((class, u8::try_from(steps).ok().filter(|_| class < classes)?))
                });
                return Some(TreeNode::Leaf(adds.collect::<Option<_>>()?));
            };
            // A child stands behind its parent and has no other.
            for child in [first, second] {
                let is_known = has_parent.get_mut(child).filter(|_| child > at - root)?;
                if std::mem::replace(is_known, true) {
                    return None;
                }
            }
            let threshold = thresholds[at];
            let is_sound = feature < channels * places + context && !threshold.is_nan();
            let (below, above) = (first, second);
            is_sound.then_some(TreeNode::Split { feature, threshold, below, above })
        };
        (root..end).map(node).collect()
    };
    let is_even = thresholds.len() == count && next.len() == 2 * count && !roots.is_empty();
    let trees = is_even.then(|| bounds.map(tree).collect::<Option<Vec<_>>>()).flatten();
    let forest = trees.map(|trees| Forest { trees, ..forest }).filter(|forest| {
        let temperatures = &forest.inverse_temperatures;
        forest.steps_max() < forest.scores.len()
            && temperatures.len() == places + 1
            && temperatures.iter().all(|it| it.is_finite() && *it > 0.0)
    });
    forest.ok_or_else(|| Error::Snapshot("its nodes do not make trees".into()))
}

fn index(number: i32) -> Option<usize> {
    usize::try_from(number).ok()
}
