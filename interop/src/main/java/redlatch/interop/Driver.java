package redlatch.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Drives a real Redisson from line commands on stdin and answers on stdout.
 *
 * <p>A command is {@code <seq> <thread> <verb> <args...>}, its reply
 * {@code <seq> ok <elapsed_us> <epoch_us> <value>} or
 * {@code <seq> err <elapsed_us> <epoch_us> <Exception> <message>}.
 * Each logical thread is one Java thread, hence one lock owner, and executes its commands in order; different threads
 * block independently. Elapsed time counts from the moment the thread begins the command; the epoch time is the wall
 * clock when it has ended, so that events of several processes on one host can be put in order.
 */
public final class Driver {
    private final PrintStream replies;
    private final Verbs verbs = new Verbs();
    private final Map<String, Worker> workers = new ConcurrentHashMap<>();

    private Driver(PrintStream replies) {
        this.replies = replies;
    }

    public static void main(String[] argv) throws IOException {
        PrintStream replies = new PrintStream(new FileOutputStream(FileDescriptor.out), false,
                StandardCharsets.UTF_8);
        // Anything that a library prints must not mix with the replies.
        System.setOut(System.err);
        try {
            new Driver(replies).readCommands();
        } finally {
            // The test that started this process is gone or has asked for the end. Halting skips every shutdown hook,
            // so that held locks stay as they are, like those of a process that dies.
            Runtime.getRuntime().halt(0);
        }
    }

    private void readCommands() throws IOException {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            if (line.isBlank()) {
                continue;
            }
            String[] tokens = line.split(" ");
            if (tokens.length < 3) {
                reply(tokens[0], System.nanoTime(), "err", "IllegalArgumentException "
                        + Tokens.encode("expected <seq> <thread> <verb> <args...>"));
                continue;
            }
            String seq = tokens[0];
            String verb = tokens[2];
            switch (verb) {
                case "exit" -> {
                    reply(seq, System.nanoTime(), "ok", Tokens.NIL);
                    return;
                }
                // Runs at once, because the thread that it names is busy with the command to be interrupted.
                case "interrupt" -> {
                    Worker target = tokens.length > 3 ? workers.get(tokens[3]) : null;
                    reply(seq, System.nanoTime(), "ok", String.valueOf(target != null && target.interruptCommand()));
                }
                default -> workers.computeIfAbsent(tokens[1], this::startWorker)
                        .submit(seq, verb, Arrays.copyOfRange(tokens, 3, tokens.length));
            }
        }
    }

    private Worker startWorker(String id) {
        Worker worker = new Worker(id, this, verbs);
        worker.start();
        return worker;
    }

    /** Writes one reply line. {@code value} is already encoded. */
    void reply(String seq, long startNanos, String outcome, String value) {
        long elapsedMicros = (System.nanoTime() - startNanos) / 1_000;
        Instant now = Instant.now();
        long epochMicros = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
        synchronized (replies) {
            replies.print(seq + ' ' + outcome + ' ' + elapsedMicros + ' ' + epochMicros + ' ' + value + '\n');
            replies.flush();
        }
    }
}
