"""PPO on several ranks as CleanRL writes it: rollouts, and gradients in one flat tensor."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributions import Categorical

ROLLOUT, ENVIRONMENTS, EPOCHS, MINIBATCH = 16, 4, 2, 16


class Environment:
    """A point that drifts home, and is pushed."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> np.ndarray:
        self.place, self.age = self.generator.normal(size=4), 0
        return self.place.copy()

    def step(self, action: int) -> tuple[np.ndarray, float]:
        noise = self.generator.normal(size=4) * 0.05
        self.place = self.place * 0.9 + 0.1 * (action - 0.5) + noise
        self.age += 1
        reward = -float((self.place**2).sum())
        if self.age >= 20:
            self.reset()
        return self.place.copy(), reward


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x).view(-1)


def rollout(agent, environments, obs):
    rows = []
    for _ in range(ROLLOUT):
        with torch.no_grad():
            action, logprob, _, value = agent.action_and_value(obs)
        steps = [env.step(int(one)) for env, one in zip(environments, action, strict=True)]
        reward = torch.tensor([reward for _, reward in steps], dtype=torch.float64)
        rows.append((obs, action, logprob, reward, value))
        obs = torch.tensor(np.stack([place for place, _ in steps]))
    return obs, [torch.stack(column) for column in zip(*rows, strict=True)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    agent = Agent().double()
    torch.manual_seed(100 + rank)
    np.random.seed(rank)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    environments = [Environment(1000 * rank + number) for number in range(ENVIRONMENTS)]
    obs = torch.tensor(np.stack([env.reset() for env in environments]))
    for update in range(3):
        obs, (seen, actions, logprobs, rewards, values) = rollout(agent, environments, obs)
        returns = rewards.flip(0).cumsum(0).flip(0)
        b_obs, b_actions, b_logprobs = seen.view(-1, 4), actions.view(-1), logprobs.view(-1)
        b_returns, b_advantages = returns.view(-1), (returns - values).view(-1)
        b_inds = np.arange(ROLLOUT * ENVIRONMENTS)
        for _ in range(EPOCHS):
            np.random.shuffle(b_inds)
            for start in range(0, len(b_inds), MINIBATCH):
                inds = b_inds[start : start + MINIBATCH]
                _, logprob, entropy, value = agent.action_and_value(b_obs[inds], b_actions[inds])
                ratio = (logprob - b_logprobs[inds]).exp()
                advantages = b_advantages[inds]
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                pg_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
                v_loss = 0.5 * ((value - b_returns[inds]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                if world_size > 1:
                    grads = [p.grad.view(-1) for p in agent.parameters() if p.grad is not None]
                    all_grads = torch.cat(grads)
                    dist.all_reduce(all_grads, op=dist.ReduceOp.SUM)
                    offset = 0
                    for param in agent.parameters():
                        if param.grad is not None:
                            part = all_grads[offset : offset + param.numel()]
                            param.grad.data.copy_(part.view_as(param.grad.data) / world_size)
                            offset += param.numel()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if rank == 0:
            print("update", update, "return", rewards.mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
