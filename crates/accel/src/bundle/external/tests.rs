//! Tensors with their data elsewhere, wherever a model can have a tensor; written field by field.

use proptest::prelude::*;

use super::*;

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn part(field: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let length = varint(content.len() as u64);
    [varint(field << 3 | 2), length, content.to_vec()].concat()
}

/// A tensor as exporters write one.
fn external(name: &str) -> Vec<u8> {
    let location = [part(1, "location"), part(2, "../etc/passwd")].concat();
    let name = match name {
        "" => Vec::new(),
        name => part(8, name),
    };
    [number(1, 2), name, part(13, location), number(14, 1)].concat()
}

fn inner(name: &str) -> Vec<u8> {
    [number(1, 2), part(8, name), part(9, "12345678"), number(14, 0)].concat()
}

/// A node with one attribute.
fn node(operator: &str, attribute: &[u8]) -> Vec<u8> {
    [part(2, "out"), part(3, "node"), part(4, operator), part(5, attribute)].concat()
}

/// The whole graph of a model.
fn model(graph: &[u8]) -> Vec<u8> {
    [number(1, 8), part(8, number(2, 17)), part(7, graph)].concat()
}

fn in_node(attribute: Vec<u8>) -> Vec<u8> {
    model(&part(1, node("Op", &[part(1, "attribute"), attribute].concat())))
}

/// The body of a Loop around a graph.
fn in_loop(graph: &[u8]) -> Vec<u8> {
    part(1, node("Loop", &[part(1, "body"), part(6, graph)].concat()))
}

/// Every place of a tensor: what it is called, and a model with the tensor there.
fn places(tensor: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let initializer = part(5, tensor);
    let constant = part(1, node("Constant", &[part(1, "value"), part(5, tensor)].concat()));
    let with = |field, graph: &[u8]| [number(1, 8), part(field, graph)].concat();
    vec![
        ("initializer", model(&initializer)),
        ("Constant", model(&constant)),
        ("initializer in a Loop", model(&in_loop(&initializer))),
        ("Constant in two Loops", model(&in_loop(&in_loop(&constant)))),
        ("one of the branches", in_node(part(11, &initializer))),
        ("one of the tensors", in_node([part(10, inner("a")), part(10, tensor)].concat())),
        ("sparse values", model(&part(15, part(1, tensor)))),
        ("sparse indices", model(&part(15, part(2, tensor)))),
        ("sparse constant", in_node(part(22, part(1, tensor)))),
        ("one of the sparse tensors", in_node(part(23, part(2, tensor)))),
        ("node of a function", with(25, &part(7, node("Constant", &part(5, tensor))))),
        ("default of a function's attribute", with(25, &part(11, part(5, tensor)))),
        ("training, initialization", with(20, &part(1, &initializer))),
        ("training, algorithm", with(20, &part(2, &constant))),
        ("a second graph", [model(&[]), part(7, &initializer)].concat()),
    ]
}

fn refusal(model: &[u8]) -> String {
    let problem = check(model).expect_err("the model is refused");
    assert!(!problem.contains('\n'), "{problem}");
    problem
}

#[test]
fn a_tensor_with_its_data_elsewhere_is_refused_by_name_wherever_it_is() {
    for (place, model) in places(&external("weights")) {
        let problem = refusal(&model);
        for wanted in [
            "the tensor \"weights\"",
            "in another file (\"../etc/passwd\")",
            "save_as_external_data=False",
        ] {
            assert!(problem.contains(wanted), "{place}: {problem}");
        }
    }
    for (place, model) in places(&inner("weights")) {
        assert_eq!(check(&model), Ok(()), "{place}");
    }
}

#[test]
fn a_constant_without_a_name_is_called_by_its_output() {
    let constant = part(1, node("Constant", &part(5, external(""))));
    let problem = refusal(&model(&in_loop(&constant)));
    assert!(problem.contains("the tensor \"out\""), "{problem}");
}

#[test]
fn any_sign_of_data_elsewhere_is_enough() {
    let location = [part(1, "location"), part(2, "w")].concat();
    for sign in [
        number(14, 1),
        // Enums that the reader does not know, or cuts to 32 bits.
        number(14, 2),
        number(14, 1 << 32 | 1),
        number(14, u64::MAX),
        part(13, location),
        part(13, ""),
        // A later field has the last word, but not here.
        [number(14, 1), number(14, 0)].concat(),
        // The same field in two bytes.
        vec![0xf0, 0x00, 0x01],
    ] {
        let tensor = [part(8, "w"), sign].concat();
        assert!(refusal(&model(&part(5, tensor))).contains("\"w\""));
    }
}

#[test]
fn names_cannot_break_the_line() {
    let name = format!("a\n\u{1b}[31m{}", "x".repeat(500));
    let problem = refusal(&model(&part(5, external(&name))));
    assert!(problem.len() < 500 && !problem.contains('\u{1b}'), "{problem}");
}

#[test]
fn a_compiled_model_in_another_file_is_refused() {
    let compiled = |attributes: &[Vec<u8>]| {
        let attributes: Vec<u8> = attributes.iter().flat_map(|it| part(5, it)).collect();
        model(&part(1, [part(3, "npu"), part(4, "EPContext"), attributes].concat()))
    };
    let mode = |value: Vec<u8>| [part(1, "embed_mode"), value].concat();
    let context = [part(1, "ep_cache_context"), part(4, "blob")].concat();
    assert_eq!(check(&compiled(std::slice::from_ref(&context))), Ok(()));
    assert_eq!(check(&compiled(&[context.clone(), mode(number(3, 1))])), Ok(()));
    for value in [number(3, 0), vec![], [number(3, 1), number(3, 0)].concat()] {
        let problem = refusal(&compiled(&[mode(value), context.clone()]));
        assert!(problem.contains("the node \"npu\" (EPContext)"), "{problem}");
    }
    let other = node("Other", &mode(number(3, 0)));
    assert_eq!(check(&model(&part(1, other))), Ok(()));
}

#[test]
fn what_cannot_be_judged_is_refused() {
    // A field that this version of ONNX does not have, with contents; a number holds no tensor.
    let problem = refusal(&model(&part(30, inner("w"))));
    assert!(problem.contains("field 30 of its GraphProto is unknown"), "{problem}");
    assert_eq!(check(&model(&number(30, 1))), Ok(()));
    assert!(refusal(b"\x20\0\0\0ORTM....").contains("ORT format"));
    assert!(refusal(b"not a model").contains("is not an ONNX model"));
    // The tag of `data_location` with a bit beyond the 32nd, which other readers cut off.
    let tensor = [part(8, "w"), vec![0xf0, 0x80, 0x80, 0x80, 0x10, 1]].concat();
    assert!(refusal(&model(&part(5, tensor))).contains("is not an ONNX model"));
}

#[test]
fn nesting_is_bounded() {
    let loops = |times| (0..times).fold(part(5, inner("w")), |graph, _| in_loop(&graph));
    assert_eq!(check(&model(&loops(30))), Ok(()));
    assert!(refusal(&model(&loops(40))).contains("nested more than 100 deep"));
    assert!(refusal(&model(&loops(10_000))).contains("nested more than 100 deep"));
}

/// The shipped model, which has everything in its file.
fn shipped() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/app-id-k10/model.onnx");
    std::fs::read(path).unwrap()
}

#[test]
fn the_shipped_model_is_whole() {
    assert_eq!(check(&shipped()), Ok(()));
}

proptest! {
    /// Whatever the bytes are: an answer of one line, and no panic.
    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!check(&bytes).is_err_and(|problem| problem.contains('\n')));
    }

    /// A model with some bytes changed, put in or left out.
    #[test]
    fn any_damage_is_answered(
        place in 0..16usize,
        at in any::<prop::sample::Index>(),
        left_out in 0..6usize,
        put_in in prop::collection::vec(any::<u8>(), 0..6),
    ) {
        let mut places = places(&external("weights"));
        places.push(("shipped", shipped()));
        let mut model = places.swap_remove(place).1;
        let from = at.index(model.len());
        model.splice(from..model.len().min(from + left_out), put_in);
        prop_assert!(!check(&model).is_err_and(|problem| problem.contains('\n')));
    }

    /// Cut anywhere.
    #[test]
    fn any_cut_is_answered(place in 0..15usize, at in any::<prop::sample::Index>()) {
        let (_, model) = places(&external("weights")).swap_remove(place);
        let _ = check(&model[..at.index(model.len())]);
    }
}
