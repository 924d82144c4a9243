import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's own tools one after the other in one JVM: their starts would take most of the time. A line of JSON names the class,
 * its arguments and its input; one answers with its exit code and what it wrote. Each run loads the tools' jar (the first argument)
 * anew, as they keep state in statics.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** A tool's way out. No exception, so that no tool takes it for a failure of its own. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1;
    }

    private Integer code;

    public static void main(String[] args) throws IOException {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        URL[] jar = {Path.of(args[0]).toUri().toURL()};
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(new Tools().run(jar, JSON.readTree(line)));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private ObjectNode run(URL[] jar, JsonNode command) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(command.get("stdin").asText())));
        Exit.setExitProcedure((status, message) -> leave(status));
        Exit.setHaltProcedure((status, message) -> leave(status));
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        List<String> args = new ArrayList<>();
        command.get("args").forEach(arg -> args.add(arg.asText()));
        try (URLClassLoader loader = new URLClassLoader(jar, Tools.class.getClassLoader())) {
            Thread.currentThread().setContextClassLoader(loader);
            loader.loadClass(command.get("class").asText()).getMethod("main", String[].class).invoke(null, (Object) args.toArray(new String[0]));
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Exited)) {
                e.getCause().printStackTrace();
                code = 1;
            }
        } catch (ReflectiveOperationException e) {
            e.printStackTrace();
            code = 1;
        }
        // The console producer is closed by one, and so what it holds is sent.
        hooks.forEach(Runnable::run);
        return JSON.createObjectNode().put("code", code == null ? 0 : code)
            .put("out", Base64.getEncoder().encodeToString(out.toByteArray()))
            .put("errors", errors.toString(StandardCharsets.UTF_8));
    }

    private void leave(int status) {
        // Who catches everything and leaves again doesn't mean it.
        if (code == null) {
            code = status;
        }
        throw new Exited();
    }
}
