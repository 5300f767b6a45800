"""Tensor cores and FP64: what the CPU expects of a card, what a wrong one is told by, and how signatures are judged."""

import array
import struct
from fractions import Fraction

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda, tensor
from provision.catalog import load_catalog
from provision.parts.driver import proofs
from tests.unit.provecases import H100, outcome

FORMATS = {form.name: form for form in tensor.FORMATS}
# e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa (OCP 8-bit floating point specification, table of values)
E4M3 = {0x30: 0.5, 0x38: 1.0, 0x3C: 1.5, 0x3F: 1.875, 0xB8: -1.0, 0xB1: -0.5625}


@pytest.mark.parametrize("bits", [0x3800, 0x3C00, 0xBC00, 0x3BFF, 0x3D55])
def test_fp16_is_decoded_as_python_does(bits):
    assert tensor.decoded(FORMATS["fp16"], bits) == struct.unpack("<e", struct.pack("<H", bits))[0]


@pytest.mark.parametrize("bits", [0x3F00, 0x3F80, 0xBF80, 0x3FFF, 0xBF15])
def test_bf16_is_the_upper_half_of_a_float(bits):
    assert tensor.decoded(FORMATS["bf16"], bits) == struct.unpack("<f", struct.pack("<I", bits << 16))[0]


@pytest.mark.parametrize("bits, value", E4M3.items())
def test_fp8_is_decoded(bits, value):
    assert tensor.decoded(FORMATS["fp8"], bits) == value


@pytest.mark.parametrize("value", [0.5, -1.0, 1.9999999999999998, -0.75])
def test_fp64_is_decoded(value):
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    assert tensor.decoded(FORMATS["fp64"], bits) == tensor.decoded(FORMATS["fp64_tensor"], bits) == value


@pytest.mark.parametrize("form", tensor.FORMATS, ids=lambda form: form.name)
def test_exact_elements_are_halves_and_ones_and_full_ones_use_every_bit(form):
    exact, full = (sum(map(list, tensor.inputs(form, exact)), []) for exact in (True, False))
    assert {tensor.decoded(form, value) for value in exact} == {0.5, 1.0, -0.5, -1.0}
    assert all(0.5 <= abs(tensor.decoded(form, value)) < 2 for value in full)
    union = 0
    for value in full:
        union |= value
    low = form.mantissa - form.drawn
    assert union & (1 << form.mantissa) - 1 == (1 << form.mantissa) - 1 >> low << low


@pytest.mark.parametrize("form", tensor.FORMATS[1:], ids=lambda form: form.name)
def test_the_sums_that_the_cpu_expects_are_the_products(form):
    a, b = (list(map(Fraction, (tensor.decoded(form, x) for x in side))) for side in tensor.inputs(form, True))
    got = array.array("d" if form.wide else "f", tensor.right(form, True, 3))
    assert len(got) == tensor.CHAINS * form.rows * form.columns
    for chain, row, column in ((0, 0, 0), (1, 2, 5), (3, form.rows - 1, form.columns - 1)):
        total = sum(
            a[(chain * form.rows + row) * form.depth + k] * b[(chain * form.columns + column) * form.depth + k]
            for k in range(form.depth)
        )
        assert got[(chain * form.rows + row) * form.columns + column] == 3 * total
    # Hopper's FP8 sums have 14 bits: the exact ones need fewer
    assert (
        max(map(abs, array.array("d" if form.wide else "f", tensor.right(form, True, tensor.EXACT_ROUNDS)))) * 4 < 2**14
    )


def test_scalar_fp64_is_the_fused_sum_of_ieee():
    form = FORMATS["fp64"]
    a, b = (list(map(Fraction, (tensor.decoded(form, x) for x in side))) for side in tensor.inputs(form, False))
    got = array.array("d", tensor.right(form, False, 20))
    for at in (0, 33, 127):
        fused = 0.0
        for _ in range(20):
            fused = float(a[at] * b[at] + Fraction(fused))
        assert got[at] == fused
    rounded = sum(Fraction(sum_) != 20 * x * y for sum_, x, y in zip(got, a, b, strict=True))
    assert rounded > len(got) // 2, "where nothing is rounded, a card that drops bits would pass"


class Simulated:
    """A card that gives the CPU's sums, or others where ``spoil`` changes them; stand-in for what prove.tensor uses."""

    processors = 3

    def __init__(self, cc=(9, 0), spoil=None, refused=()):
        self.cc, self.spoil, self.refused = cc, spoil or (lambda name, sums: sums), refused
        self.memory, self.cleared = [], 0

    def compile(self, text, missing=()):
        name = text.split(".entry ")[1].split("(")[0]
        assert missing == (222,)
        return None if name in self.refused else name

    def allocate(self, size):
        self.memory.append(b"")
        return len(self.memory) - 1

    def free(self, place):
        pass

    def put(self, place, data):
        self.memory[place] = bytes(data)

    def clear(self, place, size):
        self.memory[place] = bytes(size)
        self.cleared += 1

    def get(self, place, size):
        return bytearray(self.memory[place])

    def synchronize(self):
        pass

    def seconds(self, work):
        work()
        return 0.001

    def launch(self, name, arguments, grid, block, module):
        form = FORMATS[name]
        assert module == name
        a, b, sums, at, rounds = (argument.value for argument in arguments)
        exact = self.memory[a] == tensor.packed(form, tensor.inputs(form, True)[0])
        warps = grid[0] * block[0] // 32
        # of what nobody knows: the sums of the exact elements do as well as any
        one = tensor.right(form, exact if form.depth == 1 else True, min(rounds, 3) if rounds > 512 else rounds)
        self.memory[sums] = self.spoil(name, one * warps)
        self.memory[at] = array.array("I", [warp % self.processors for warp in range(warps)]).tobytes()


def proved(**more):
    result = {"numbers": {}, "wrong": []}
    card = Simulated(**more)
    tensor.prove(card, result)
    return result, card


def test_a_sound_card_has_a_signature_for_every_format_that_it_has():
    result, card = proved()
    assert not result["wrong"] and not result["left_out"]
    assert list(result["signatures"]) == list(FORMATS)
    assert set(result["numbers"]) == {f"{name}_tflops" for name in FORMATS}
    assert card.cleared == 2 * len(FORMATS), "sums of an earlier launch must not stand for those of this one"


@pytest.mark.parametrize(
    "cc, names",
    [
        ((3, 7), []),
        ((6, 1), ["fp64"]),
        ((7, 5), ["fp64", "fp16"]),
        ((8, 6), ["fp64", "fp16", "bf16", "fp64_tensor"]),
        ((12, 0), ["fp64", "fp16", "bf16", "fp64_tensor", "fp8"]),
    ],
)
def test_older_cards_are_asked_for_what_they_have(cc, names):
    result, _ = proved(cc=cc)
    assert list(result["signatures"]) == names and not result["left_out"]


def test_a_driver_whose_compiler_is_too_old_leaves_a_format_out():
    result, _ = proved(refused=("fp8",))
    assert result["left_out"] == ["fp8"] and "fp8" not in result["signatures"] and not result["wrong"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_bit_that_is_wrong_on_every_warp_is_told_by_the_cpu(name):
    result, _ = proved(spoil=lambda form, sums: bytes([sums[0] ^ 1]) + sums[1:] if form == name else sums)
    assert any(words.startswith(f"{name}: ") for words in result["wrong"])
    flipped = len(tensor.right(FORMATS[name], True, 1))

    def all_warps(form, sums):
        one = bytearray(sums[:flipped])
        one[3] ^= 0x10
        return bytes(one) * (len(sums) // flipped) if form == name else sums

    result, _ = proved(spoil=all_warps)
    assert f"{name}: sums are not those of the CPU" in result["wrong"]


def test_a_multiprocessor_that_computes_wrong_is_named():
    each = len(tensor.right(FORMATS["fp16"], True, 1))

    def spoil(name, sums):
        # warps 4 and 7 run on multiprocessor 1 of 3
        changed = bytearray(sums)
        for warp in (4, 7) if name == "fp16" else ():
            changed[warp * each] ^= 1
        return bytes(changed)

    result, _ = proved(spoil=spoil)
    assert result["wrong"][0] == "fp16: warps with the same data have different sums on multiprocessor 1"
    assert "fp16" not in result["signatures"]


@pytest.mark.parametrize("form", tensor.FORMATS, ids=lambda form: form.name)
def test_the_text_of_a_kernel_declares_what_it_uses(form):
    text = tensor.text(form)
    assert f".version {form.version}\n.target {form.target}" in text and f".entry {form.name}(" in text
    assert text.count("mma.sync") == (0 if form.name == "fp64" else tensor.CHAINS)
    assert cuda.MIB and "%%" not in text and "%(" not in text


NUMBERS = {
    "gflops": 1.0,
    "memory_gb_per_s": 1.0,
    "host_to_card_gb_per_s": 50.0,
    "card_to_host_gb_per_s": 50.0,
    "jit_ms": 1.0,
}


def computed(*signed, cc="9.0"):
    return [
        (
            {"label": str(number), "index": number, "cc": cc, "name": H100},
            outcome({"card": {"name": H100}, "numbers": NUMBERS, "wrong": [], "load": [], "signatures": signatures}),
        )
        for number, signatures in enumerate(signed)
    ]


def known(cc="9.0"):
    return dict(load_catalog().architectures.compute_capabilities[cc].signatures)


def test_the_catalogs_signatures_are_those_of_every_card():
    said, lines = proofs.signatures(computed(known(), known()))
    assert not said and lines[0].startswith("card 0, 1: tensor cores and FP64 bf16 ")


def test_a_card_that_rounds_unlike_the_catalogs_is_told_even_alone():
    said, _ = proofs.signatures(computed({**known(), "fp16": "0" * 16}))
    assert said == ["card 0 rounds fp16 unlike others of compute capability 9.0"]


def test_cards_that_the_catalog_does_not_know_are_held_against_each_other():
    said, _ = proofs.signatures(computed({"fp16": "a"}, {"fp16": "b"}, {"fp16": "a"}, cc="8.6"))
    assert said == ["card 1 rounds fp16 unlike others of compute capability 8.6"]
    assert not proofs.signatures(computed({"fp16": "a"}, cc="8.6"))[0]


def test_a_card_that_rounds_unlike_others_fails_the_check():
    bad = computed({**known(), "fp8": "1" * 16})
    status, message, _, hint, _ = proofs.judge_compute(bad, [], [], proofs.Bounds())
    assert status == "fail" and "rounds fp8" in message and "run it again" in hint
