"""Output layers that are convolutions of size 1: linear layers over the channels."""

import pytest
import torch
from torch import nn

from temperance.ensemble import convert
from temperance.errors import InvalidInput
from temperance.head import HeadOptions, TemperedHead, fold, insert, remove, set_norm_statistics
from temperance.models import find_head, load_state
from temperance.models.layer import feature_axis, layer_kind

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Net(nn.Module):
    """As SqueezeNet: dropout, convolution, ReLU, mean over the positions."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(8, 5, 1), nn.ReLU())

    def forward(self, x):
        return self.classifier(self.body(x)).mean((2, 3))


X = torch.randn(6, 3, 7, 5, generator=torch.Generator().manual_seed(1))


def unusual(head):
    with torch.no_grad():
        head.norm.running_mean.normal_()
        head.norm.running_var.uniform_(0.5, 2)
        head.norm.weight.normal_()
        head.norm.bias.normal_()
        head.norm.num_batches_tracked.fill_(1)
    return head


@pytest.mark.parametrize("positions", CONVS)
@pytest.mark.parametrize("norm", ["batch", "batch-no-affine", "layer", "none"])
@pytest.mark.parametrize("training", [True, False])
def test_every_position_is_a_row_of_the_linear_head(positions, norm, training):
    conv = CONVS[positions](8, 5, 1)
    linear = nn.Linear(8, 5)
    with torch.no_grad():
        linear.weight.copy_(conv.weight.flatten(1))
        linear.bias.copy_(conv.bias)
    heads = [TemperedHead(layer, 4.0, norm=norm).train(training) for layer in (conv, linear)]
    assert heads[0].in_features == 8
    assert heads[0].out_features == 5
    x = torch.randn(3, 8, *range(2, 2 + positions))
    expected = heads[1](x.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(heads[0](x), expected)
    if norm.startswith("batch"):
        torch.testing.assert_close(heads[0].norm.running_var, heads[1].norm.running_var)


def test_the_whole_life_of_a_convolutional_head():
    net = Net().eval()
    plain, old = net(X), net.classifier[1]
    head = unusual(insert(net, 4.0, example=X))
    assert (head.linear, head.feature_axis) == (old, -3)
    assert net(X).dtype == torch.float32
    folded = fold(net, X)
    layer = folded.classifier[1]
    assert type(layer) is nn.Conv2d
    assert layer.fold_report.max_rel_error < 1e-6
    assert layer.fold_report.example_rel_error < 1e-6
    torch.testing.assert_close(folded(X), net(X))
    assert fold(head).weight.shape == old.weight.shape
    assert remove(net) is old
    assert torch.equal(net(X), plain)


def test_t_alone_is_t_on_the_logits():
    net = Net().eval()
    plain = net(X)
    insert(net, 4.0, norm="none", example=X)
    torch.testing.assert_close(net(X), plain / 4)


def test_statistics_are_those_of_all_positions():
    net = Net().eval()
    features = net.body(X)
    head = insert(net, 4.0, example=X)
    found = set_norm_statistics(net, [X[:2], X[2:]])
    assert found.n_rows == features.shape[0] * features.shape[2] * features.shape[3]
    torch.testing.assert_close(head.norm.running_mean, features.mean((0, 2, 3)))
    rows = features.movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(head.norm.running_var, rows.var(0))
    plain = remove(net) and net(X)
    insert(net, 4.0, example=X)
    set_norm_statistics(net, [X], keep_function=True)
    torch.testing.assert_close(net(X), plain, atol=1e-5, rtol=1e-4)


def test_weights_drawn_anew_are_those_of_a_linear_layer(rng_guard):
    options = HeadOptions(keep_weights=False, seed=3)
    net = Net()
    with rng_guard():
        drawn = insert(net, 4.0, example=X, options=options).linear
    assert type(drawn) is nn.Conv2d
    assert float(drawn.weight.detach().abs().max()) < 8**-0.5
    again = insert(Net(), 4.0, name="classifier.1", options=options).linear
    assert torch.equal(drawn.weight, again.weight)


def test_members_of_an_inserted_convolution():
    net = Net().eval()
    unusual(insert(net, 4.0, example=X))
    ensemble = convert(net, 3, spread=0.0, example=X)
    torch.testing.assert_close(ensemble(X), net(X).expand(3, -1, -1))


def test_a_plain_checkpoint_fills_the_tempered_convolution():
    source, net = Net(), Net()
    insert(net, 1.0, norm="none", example=X)
    report = load_state(net, source.state_dict())
    assert "classifier.1.linear.weight" in report.loaded
    torch.testing.assert_close(net.eval()(X), source.eval()(X))


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(8, 5, 3, padding=1),
        nn.Conv2d(8, 4, 1, groups=2),
        nn.Conv2d(8, 5, 1, stride=2),
        nn.Conv2d(8, 5, 1, padding=1),
        nn.Conv2d(8, 5, (1, 3)),
    ],
)
def test_other_convolutions_are_refused_with_the_model_as_it_was(conv):
    net = Net()
    net.classifier[1] = conv
    assert find_head(net, X).kind == layer_kind(conv) == "conv"
    with pytest.raises(InvalidInput) as error:
        insert(net, 4.0, example=X)
    assert "size 1" in error.value.fix
    assert net.classifier[1] is conv


def test_a_parametrized_convolution():
    net = Net().eval()
    conv = nn.utils.parametrizations.weight_norm(net.classifier[1])
    assert find_head(net, X).kind == "conv1x1"
    unusual(insert(net, 4.0, example=X))
    assert type(fold(net, X).classifier[1]) is nn.Conv2d
    assert remove(net) is conv


def test_features_on_the_wrong_axis():
    head = TemperedHead(nn.Conv2d(8, 5, 1), 4.0)
    for shape in ((2, 3, 3, 8), (8,), (2, 8)):
        with pytest.raises(InvalidInput) as error:
            head(torch.zeros(shape))
        assert "axis -3" in error.value.expected


def test_the_axis_of_the_features():
    assert [feature_axis(c(2, 3, 1)) for c in CONVS.values()] == [-2, -3, -4]
    assert layer_kind(nn.Conv2d(2, 3, 1, padding="same")) == "conv1x1"


def test_a_cosine_of_a_convolution_is_refused():
    with pytest.raises(InvalidInput):
        insert(Net(), 0.1, norm="cosine", example=X)
