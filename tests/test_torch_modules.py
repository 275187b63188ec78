"""PyTorch modules by translation: equal to PyTorch, trained like PyTorch, or refused by name."""

import numpy as np
import pytest

import shoal as sh

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, F = torch.nn, torch.nn.functional

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 5, 8))
PAD = np.zeros((6, 5), bool)
PAD[2, 3:] = PAD[4, 4:] = True


class Attention(nn.Module):
    def __init__(self, causal=False):
        super().__init__()
        self.attention, self.causal = nn.MultiheadAttention(8, 2, batch_first=True), causal

    def forward(self, x, padding=None):
        n = x.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1) if self.causal else None
        how = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": False}
        return self.attention(x, x, x, **how)[0]


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, ids):
        h = self.embed(ids)
        b, n, d = h.shape
        q, k, v = self.qkv(h).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h + a.transpose(1, 2).reshape(b, n, d))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.out = nn.Conv2d(4, 6, 3), nn.Linear(6, 3)

    def forward(self, x):
        h = F.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        h = F.avg_pool2d(torch.tanh(self.second(h)), 2)
        return self.out(F.adaptive_avg_pool2d(h, 1).flatten(1))


def layer(**more):
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **more)


MODULES = {
    "post-norm ReLU layer": (layer, X),
    "pre-norm GELU layer": (lambda: layer(norm_first=True, activation="gelu"), X),
    "encoder of 3 layers": (
        lambda: nn.TransformerEncoder(layer(), 3, enable_nested_tensor=False), X,
    ),
    "attention": (Attention, X),
    "attention with a causal mask": (lambda: Attention(causal=True), X),
    "attention with padding": (Attention, (X, PAD)),
    "attention with both": (lambda: Attention(causal=True), (X, PAD)),
    "embedding with causal attention": (Language, RNG.integers(0, 11, (6, 7))),
    "CNN with pooling": (Pictures, RNG.standard_normal((6, 1, 12, 12))),
}  # fmt: skip


def tensors(x):
    return tuple(torch.as_tensor(a) for a in (x if isinstance(x, tuple) else (x,)))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_its_translation_and_trains_like_it(name):
    torch.manual_seed(0)
    make, x = MODULES[name]
    module = make()
    inside = module.double().eval()(*tensors(x))
    y = 0.1 * RNG.standard_normal(tuple(inside.shape))
    setup = sh.setup(module, x, y, loss="mean_squares")
    outputs = setup.network.outputs(setup.one().params0, x)
    np.testing.assert_allclose(outputs, inside.detach(), rtol=1e-9, atol=1e-9)
    run = sh.train(setup, steps=50, step_size=0.05, probes=[])
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    risks = []
    for _ in range(51):
        optimiser.zero_grad()
        loss = F.mse_loss(module(*tensors(x)), torch.as_tensor(y))
        risks.append(loss.item())
        loss.backward()
        optimiser.step()
    np.testing.assert_allclose(run.risk[0], risks, rtol=1e-8)


def test_trained_weights_go_back_into_the_module():
    module = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    y = RNG.standard_normal((6, 1))
    run = sh.train(sh.setup(module, X[:, 0], y), steps=5, step_size=0.01, probes=[])
    state = run.state_dict()
    assert {W.dtype for W in state.values()} == {torch.float32}
    module.load_state_dict(state)
    expected = run.risk[0, -1]
    outputs = module(torch.as_tensor(X[:, 0], dtype=torch.float32)).detach().numpy()
    assert 0.5 * np.sum((outputs - y) ** 2) == pytest.approx(expected, rel=1e-5)


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    before = {name: W.clone() for name, W in module.state_dict().items()}
    sh.setup(module, X[:, 0], np.zeros((6, 1)))
    assert module.training
    assert all(torch.equal(W, before[name]) for name, W in module.state_dict().items())
    assert next(module.parameters()).dtype == torch.float32


def test_what_the_module_freezes_is_frozen():
    module = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    module[0].weight.requires_grad_(False)
    setup = sh.setup(module, X[:, 0], np.ones((6, 1)))
    assert "0.weight" not in setup.trained
    assert "1.weight" in setup.trained


def test_tied_weights_are_one_block_and_come_back_as_two():
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False))
    module[2].weight = module[0].weight
    run = sh.train(sh.setup(module, X[:, 0], np.ones((6, 8))), steps=2, step_size=0.01, probes=[])
    assert list(run.setup.one().params0) == ["0.weight"]
    state = run.state_dict()
    assert torch.equal(state["0.weight"], state["2.weight"])


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return torch.fft.rfft(self.linear(x)).abs()


class Sorting(Fourier):
    def forward(self, x):
        return torch.sort(self.linear(x), dim=-1).values


class Inverting(Fourier):
    def forward(self, x):
        return torch.linalg.inv(torch.eye(4) + self.linear(x)[:, :4])


class Deciding(Fourier):
    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else -self.linear(x)


class Pair(Fourier):
    def forward(self, x):
        return self.linear(x), x


class Whole(Fourier):
    def forward(self, x):
        return self.linear(x).argmax(-1)


REFUSED = {
    "a Fourier transform": (Fourier, X, "Fourier uses aten._fft_r2c"),
    "its line": (Fourier, X, "torch.fft.rfft(self.linear(x)).abs()"),
    "a sort": (Sorting, X, "Sorting uses aten.sort"),
    "an inverse": (Inverting, X, "Inverting uses aten.linalg_inv_ex"),
    "a decision on values": (Deciding, X, "torch.export cannot read Deciding"),
    "two outputs": (Pair, X, "Pair returns a tuple"),
    "whole numbers": (Whole, X, "expected floating-point outputs"),
    "no parameters": (nn.Tanh, X, "has no parameters"),
    "a batch of another width": (Fourier, X[..., :5], "fails in PyTorch on this batch"),
    "a word of no meaning": (Language, np.full((6, 7), 12), "fails in PyTorch on this batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_translated_is_refused_by_name(name):
    make, x, complaint = REFUSED[name]
    with pytest.raises(sh.InputError) as told:
        sh.setup(make(), x, np.zeros(6))
    assert complaint in str(told.value)


def test_a_wrong_translation_is_caught(monkeypatch):
    from shoal.interop import aten

    monkeypatch.setitem(aten.TABLE, "aten.tanh.default", lambda x: x * 1.0000001)
    with pytest.raises(sh.InputError, match="is not exact"):
        sh.setup(nn.Sequential(nn.Linear(8, 2), nn.Tanh()), X[:, 0], np.zeros((6, 2)))


class Detached(nn.Module):
    """The first layer gets no gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).detach())


class WithoutGrad(Detached):
    def forward(self, x):
        with torch.no_grad():
            h = torch.tanh(self.a(x))
        return self.b(h)


def test_a_detach_stops_the_gradient_as_in_pytorch():
    x = np.random.default_rng(0).normal(size=(6, 3))
    setup = sh.setup(Detached(), x, np.ones((6, 1)))
    run = sh.train(setup, steps=3, step_size=0.1, probes=["gradient_norm"])
    assert not run.probes["gradient_norm_a.weight"].any()
    assert run.probes["gradient_norm_b.weight"].all()


def test_a_part_without_grad_is_refused_by_name():
    with pytest.raises(sh.InputError, match=r"under torch.no_grad\(\)"):
        sh.setup(WithoutGrad(), np.ones((6, 3)), np.ones((6, 1)))
