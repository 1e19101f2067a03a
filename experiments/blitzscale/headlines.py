"""BlitzScale's main claims, and what the paper does not say."""

from experiments.harness.headlines import Headline

HEADLINES = (
    Headline(
        "abstract",
        "Serving tail latencies are reduced by up to 86 % without caching",
        "blitzscale-fig13",
        "Tail latencies are up to 86 % lower than ServerlessLLM's",
    ),
    Headline(
        "abstract",
        "Performance is comparable to, or even better than, caching all parameters on all hosts",
        "blitzscale-fig13",
        "BlitzScale has close to AllCache performance in all workloads, or better",
    ),
    Headline(
        "introduction",
        "TTFT is 30 to 80 % shorter than ServerlessLLM's under real-world traces",
        "blitzscale-fig13",
        "BlitzScale has 30 to 80 % shorter TTFT than ServerlessLLM",
    ),
    Headline(
        "introduction",
        "TBT is up to 50 % shorter than ServerlessLLM's",
        "blitzscale-fig13",
        "BlitzScale has up to 50 % shorter TBT than ServerlessLLM",
    ),
    Headline(
        "introduction, conclusion",
        "Tail latency is a magnitude smaller than ServerlessLLM's loading from SSD",
        "blitzscale-fig13",
        "Tail latency is a magnitude smaller than with ServerlessLLM's loads from SSD",
    ),
    Headline(
        "introduction",
        "Zigzag scheduling reduces tail latency by 50 % under an extremely bursty workload",
        "blitzscale-fig12",
        "Zigzag scheduling achieves 50 % tail latency reduction under an extreme burst",
    ),
    Headline(
        "introduction",
        "The compute network is under-used by serving, up to 14.4 % of its bandwidth",
        "blitzscale-fig03",
        "Serving uses less than 15 % of the network",
        "nearest: 16.6 % in the busiest second of the 7B model on links of 200 Gbps, 14.5 % over 5 s, a look "
        "that no text has; 70B takes 4 % and 8B 9 % of Table 1's",
    ),
    Headline(
        "introduction",
        "A stop time of 500 ms is needed to eliminate 95 % of SLO violations",
        "blitzscale-fig03",
        "A stop time of 500 ms is needed to eliminate 95 % of the SLO violations",
    ),
)

LEARNT = (
    "Faster loading cannot save 40 % of GPU time here: on AzureCode loads take 3 % of BlitzScale's GPU "
    "time and 6 % of ServerlessLLM's. More than half is of instances that stand idle until they stop.",
    "With one LLM on four machines ServerlessLLM nearly always finds the weights in memory: 37 of 1,472 "
    "loads on AzureCode are from SSD, and none on AzureConv. It is nearly AllCache there.",
    "With the released code's keep-alive of 30 s, in place of the paper's 5 minutes, a fifth of the "
    "loads on AzureCode are from SSD. BlitzScale's TTFT is then 71 % shorter, not 29 %.",
    "Whether ServerlessLLM starts cold decides AzureConv: in the five minutes around its peak TTFT is 4 % "
    "shorter than with copies on both machines, and 66 % shorter than with hosts of one or four GPUs.",
    "How long a stop may last depends on whose violations count, which the paper leaves open. It is 0.3 s "
    "for those with stops of 5 s, 0.6 s for ServerlessLLM's and 0.9 s for those with loads of 28 s; "
    "counted over all requests it is 1.8 s.",
    "TBT is not shorter everywhere. Around AzureCode's peak BlitzScale saves -12 [-32, 8] % of it against "
    "copies on every machine, and 30 [11, 48] % against hosts of one GPU.",
    "The 256 Gbps that keep TTFT below 1,100 ms are those of an instance of four GPUs, as the text says; per "
    "GPU it is a quarter.",
    "The lead over AllCache on AzureCode comes from NVLink more than from live scaling. TTFT is 313 ms "
    "with AllCache (Figure 14), 253 ms without live scaling and 236 ms with it (Figure 17).",
    "The interference-free plan changes little where a copy in host memory is a source. That copy has the "
    "most bandwidth, so both plans load from it first; on AzureConv they are the same.",
    "A chain is not free of its length: every hop adds the time of one layer. To 31 targets it takes 1.94 "
    "times as long as to one.",
    "The printed constraint C3 asks for layers that are not loaded, and the average latency is 1.02 times "
    "best effort's. With C3 as the text means it, it is 0.81 times.",
    "3.1 s for ServerlessLLM's 16 instances needs an SSD of some 35 Gbps. With the 10 Gbps of the paper's "
    "own Table 1 it takes 10.8 s.",
)
