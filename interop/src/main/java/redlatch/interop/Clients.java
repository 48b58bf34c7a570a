package redlatch.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseConfig;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;

/** The Redisson clients of this process by name, and the lock objects that they gave out. */
final class Clients {
    static final String DEFAULT = "main";

    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private final Map<String, Object> objects = new ConcurrentHashMap<>();

    RedissonClient get(String client) {
        RedissonClient found = clients.get(client);
        if (found == null) {
            throw new IllegalStateException("client " + client + " is not connected");
        }
        return found;
    }

    /**
     * Gives the object of this kind and name, the same one each time, as a service does that keeps its locks in
     * fields. It matters, because a Redisson lock object remembers the last lease that was taken through it.
     */
    <T> T object(Class<T> type, String client, String kind, String name, Function<RedissonClient, T> create) {
        RedissonClient redisson = get(client);
        return type.cast(objects.computeIfAbsent(client + '@' + kind + '=' + name, key -> create.apply(redisson)));
    }

    /** Forgets the objects, so that the next command gets new ones. */
    void forgetObjects() {
        objects.clear();
    }

    void shutdown(String client) {
        RedissonClient redisson = clients.remove(client);
        if (redisson == null) {
            throw new IllegalStateException("client " + client + " is not connected");
        }
        objects.keySet().removeIf(key -> key.startsWith(client + '@'));
        redisson.shutdown();
    }

    /**
     * Connects a client: {@code single <url>}, {@code cluster <url,url>} or {@code sentinel <url,url> <master>},
     * followed by options of the form {@code key=value}. Gives the id of the client.
     */
    String connect(Tokens args) {
        String topology = args.text();
        String[] addresses = args.text().split(",");
        Config config = new Config();
        // The defaults (16 and 32 threads, 24 idle connections) suit a service, not a test with a dozen JVMs.
        config.setThreads(4).setNettyThreads(4);
        BaseConfig<?> section = switch (topology) {
            case "single" -> single(config, addresses);
            case "cluster" -> cluster(config, addresses);
            case "sentinel" -> sentinel(config, addresses, args.text());
            default -> throw new IllegalArgumentException("unknown topology " + topology);
        };
        String name = DEFAULT;
        while (args.hasNext()) {
            String option = args.text();
            int equals = option.indexOf('=');
            if (equals < 0) {
                throw new IllegalArgumentException("expected key=value, got " + option);
            }
            String key = option.substring(0, equals);
            String value = option.substring(equals + 1);
            switch (key) {
                case "as" -> name = value;
                case "watchdogMs" -> config.setLockWatchdogTimeout(Long.parseLong(value));
                case "timeoutMs" -> section.setTimeout(Integer.parseInt(value));
                case "retryAttempts" -> section.setRetryAttempts(Integer.parseInt(value));
                case "database" -> setDatabase(section, Integer.parseInt(value));
                case "size" -> setSize(config, section, value);
                case "scriptCache" -> config.setUseScriptCache(Boolean.parseBoolean(value));
                default -> Release.configure(config, section, key, value);
            }
        }
        if (clients.containsKey(name)) {
            throw new IllegalStateException("client " + name + " is already connected");
        }
        RedissonClient client = Redisson.create(config);
        clients.put(name, client);
        return client.getId();
    }

    private static SingleServerConfig single(Config config, String[] addresses) {
        if (addresses.length != 1) {
            throw new IllegalArgumentException("a single server has one address");
        }
        return config.useSingleServer().setAddress(addresses[0])
                .setConnectionMinimumIdleSize(1).setConnectionPoolSize(16);
    }

    private static ClusterServersConfig cluster(Config config, String[] addresses) {
        return small(config.useClusterServers().addNodeAddress(addresses)).setScanInterval(500);
    }

    private static SentinelServersConfig sentinel(Config config, String[] addresses, String master) {
        return small(config.useSentinelServers().addSentinelAddress(addresses).setMasterName(master))
                .setCheckSentinelsList(false).setScanInterval(500);
    }

    private static <T extends BaseMasterSlaveServersConfig<T>> T small(T section) {
        return section.setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(16)
                .setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(16);
    }

    /** {@code service} gives one server the pools and threads that Redisson has by default, for measuring. */
    private static void setSize(Config config, BaseConfig<?> section, String size) {
        if (!size.equals("service") || !(section instanceof SingleServerConfig single)) {
            throw new IllegalArgumentException("a size is service, and of a single server");
        }
        config.setThreads(16).setNettyThreads(32);
        single.setConnectionMinimumIdleSize(24).setConnectionPoolSize(64).setSubscriptionConnectionPoolSize(50);
    }

    private static void setDatabase(BaseConfig<?> section, int database) {
        if (section instanceof SingleServerConfig single) {
            single.setDatabase(database);
        } else if (section instanceof SentinelServersConfig sentinel) {
            sentinel.setDatabase(database);
        } else {
            throw new IllegalArgumentException("this topology has no database numbers");
        }
    }
}
