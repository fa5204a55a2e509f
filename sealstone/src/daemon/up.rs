//! `sealstone up`: a cluster in one process.

use sealstone_cluster::{AdminCredential, AdminLogin, Cluster, ClusterConfig};
use sealstone_daemon::{AUDIT_FILE, MetricsPort};
use sealstone_device_server::DeviceServer;
use sealstone_failure::Outcome;
use sealstone_failure::text::{ShownPath as _, with_paths};
use sealstone_metadata_server::ADMIN;

use crate::cli::UpArgs;
use crate::output::Output;

/// `sealstone up`.
pub(crate) fn command(output: Output, arguments: &UpArgs) -> Outcome {
    super::run(async {
        let shutdown = super::shutdown_on_signals()?;
        let metrics = MetricsPort::bind(arguments.metrics.as_deref()).await?;
        let cluster = Cluster::start(&config(arguments), &shutdown, &|remark| output.remark(remark)).await?;
        let metrics = metrics.serve(cluster.observed(), &shutdown);
        let server = cluster.metadata_server();
        let audit = |folder: &str| cluster.data().join(folder).join(AUDIT_FILE);
        let device = |osd: &DeviceServer| {
            let pin = osd.pin().map(|pin| pin.to_string());
            let value = serde_json::json!({ "name": osd.name(), "url": osd.url(), "pin": pin });
            with_paths(value, [("audit", &audit(osd.name()))])
        };
        let value = serde_json::json!({
            "ready": "up", "address": server.address().to_string(), "pin": server.pin(), "admin": ADMIN,
            "metrics": metrics.map(|address| address.to_string()),
            "osds": cluster.devices().iter().map(device).collect::<Vec<_>>(),
        });
        let audit = cluster.metadata_folder().join(AUDIT_FILE);
        let paths =
            [("cluster", server.cluster_file()), ("admin_secret", cluster.admin_secret()), ("audit", &audit)];
        let value = with_paths(value, paths);
        let account = match AdminCredential::read(cluster.admin_secret()) {
            Ok(AdminCredential::ServiceKey(_)) => "--key-file".to_owned(),
            // The administrator may have removed the file.
            _ => format!("{ADMIN} --password-file"),
        };
        output.ready(&value, || {
            let mut lines = vec![format!("metadata server  {}", server.address())];
            lines
                .extend(cluster.devices().iter().map(|osd| format!("device {:9} {}", osd.name(), osd.url())));
            lines.push(format!("admin's secret   {}", cluster.admin_secret().shown()));
            lines.push(format!(
                "log in with      sealstone login --cluster {} {account} {}",
                server.cluster_file().shown(),
                cluster.admin_secret().shown(),
            ));
            lines.push("ready; stop with ^C".into());
            lines.join("\n")
        });
        cluster.join().await
    })
}

/// Returns the configuration of the cluster.
fn config(arguments: &UpArgs) -> ClusterConfig {
    ClusterConfig {
        data: arguments.data.clone(),
        osds: arguments.osds,
        listen: arguments.listen.clone(),
        osd_port: arguments.osd_port,
        capacity: arguments.capacity,
        admin: AdminLogin::Password,
        drain_s_max: None,
    }
}
