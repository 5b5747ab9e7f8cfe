from benchmarks import ray_overhead, speed

speed.run()
ray_overhead.run()
