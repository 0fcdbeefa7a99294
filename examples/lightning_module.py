"""RISE in Lightning: one line in configure_optimizers."""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import risegrad


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        rise = risegrad.Rise(keep=0.5, seed=0)
        self.rise = risegrad.attach(optimizer, rise, params=self.named_parameters())
        return optimizer


torch.manual_seed(0)
x = torch.randn(64, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
module = Regression()
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, data)

print(module.rise)
assert module.rise.steps == trainer.global_step == 8
