"""A tiny LightningModule on two CPU workers; Lightning has to see that a launcher made the processes."""

import lightning
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


assert TorchElasticEnvironment.detect()
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
trainer.fit(Model(), data)
environment = trainer.strategy.cluster_environment
assert isinstance(environment, TorchElasticEnvironment) and environment.creates_processes_externally
print(f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps", flush=True)
